"""What begins with a slash, in `run` and in the chat alike."""

from __future__ import annotations

import pytest

from edgellm import slash
from edgellm.errors import InvalidRequest
from edgellm.wishes import wanted


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("/set a b", ("/set", "a b")),
        ("/set\ta  b ", ("/set", "a  b")),
        ("/?", ("/?", "")),
        ("/", ("/", "")),
        ("/new\n", ("/new", "")),
        ("/etc/passwd is a file", None),
        ("/etc/passwd: what is it?", None),
        ("/Users", None),
        ("2/3", None),
        ("what is /set", None),
        (" /set", None),
        ("", None),
    ],
)
def test_what_is_a_command(text: str, found: tuple[str, str] | None) -> None:
    assert slash.split(text) == found


def test_commands_are_found_by_name_and_alias_or_the_nearest_is_named() -> None:
    commands, aliases = {"/help": 1, "/set": 2}, {"/?": "/help"}
    assert slash.find("/set", commands, aliases) == 2
    assert slash.find("/?", commands, aliases) == 1
    with pytest.raises(InvalidRequest, match="no command /halp") as caught:
        slash.find("/halp", commands, aliases)
    assert "did you mean /help?" in str(caught.value.hint)


@pytest.mark.parametrize(
    ("usage", "rest"),
    [("/new", "Why is the sky blue?"), ("/model [NAME]", "m\nWhy?"), ("/save FILE", "a.json\nb.json")],
)
def test_what_a_command_would_drop_or_misread_is_refused(usage: str, rest: str) -> None:
    name = usage.partition(" ")[0]
    with pytest.raises(InvalidRequest, match=f"nothing can follow .*{name}") as caught:
        slash.require_fitting(name, rest, usage, "what it does")
    assert str(caught.value.hint).startswith(f"{usage} alone: what it does; ")


@pytest.mark.parametrize(
    ("usage", "rest"), [("/new", ""), ("/model [NAME]", "m"), ("/set [NAME VALUE]", "system Be brief.\nBe kind.")]
)
def test_what_a_command_has_a_place_for_may_follow(usage: str, rest: str) -> None:
    slash.require_fitting(usage.partition(" ")[0], rest, usage, "what it does")


def test_what_follows_set() -> None:
    assert wanted("temperature 0.5") == ("temperature", "0.5")
    assert wanted("parameter  seed 3") == ("seed", "3")
    assert wanted("no_such_thing") == ("no_such_thing", "")
    with pytest.raises(InvalidRequest, match="say what seed shall be") as caught:
        wanted("seed")
    assert "default" in str(caught.value.hint)
