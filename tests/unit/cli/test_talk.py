"""Conversations inside `edgellm run`: what is sent, what is remembered, what the slash commands do."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from cli_fakes import ANSWER, FakeClient, Streams, at_terminal, put

import edgellm.cli.run
from edgellm.cli.main import main
from edgellm.cli.talk import repl
from edgellm.cli.talk.keyboard import History, quoted, unquoted
from edgellm.client import DaemonGone
from edgellm.contracts.events import Event, Failed, TextDelta
from edgellm.contracts.request import Message, Messages
from edgellm.errors import ContextExceeded, InvalidRequest

Typed = str | BaseException
Script = tuple[Event | BaseException, ...]


class Person:
    """Types `lines`, each after the daemon was given its script; then Ctrl+D."""

    def __init__(self, daemon: FakeClient, lines: Sequence[Typed], scripts: Iterator[Script]) -> None:
        self._daemon = daemon
        self._lines = iter(lines)
        self._scripts = scripts

    def read(self, hint: str = "") -> str:
        line = next(self._lines, EOFError())
        self._daemon.script = next(self._scripts, ANSWER)
        if isinstance(line, BaseException):
            raise line
        return line


def talk(
    monkeypatch: pytest.MonkeyPatch,
    daemon: FakeClient,
    lines: Sequence[Typed],
    scripts: Sequence[Script] = (),
    options: Sequence[str] = (),
) -> int:
    put("m")
    at_terminal(monkeypatch, edgellm.cli.run)
    monkeypatch.setattr(repl, "Keyboard", lambda *_: Person(daemon, lines, iter(scripts)))
    return main(["run", "m", *options])


def said(*turns: str) -> Messages:
    return Messages(tuple(Message("assistant" if at % 2 else "user", text) for at, text in enumerate(turns)))


def test_a_conversation_remembers(daemon: FakeClient, capsys: Streams, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = ["Hello", "", "/help", "And then?", "/bye", "never"]
    assert talk(monkeypatch, daemon, lines, options=["--system", "Brief."]) == 0
    answer = "Because sunlight scatters.\n"
    turns = said("Hello", answer, "And then?").messages
    assert [request.prompt for request in daemon.requests][1:] == [Messages((Message("system", "Brief."), *turns))]
    out, err = capsys.readouterr()
    assert out == answer * 2
    assert "Ctrl+D leaves" in err
    assert "/set NAME VALUE" in err


def test_it_survives_a_stopped_and_a_failed_answer(
    daemon: FakeClient, capsys: Streams, monkeypatch: pytest.MonkeyPatch
) -> None:
    scripts: list[Script] = [
        (TextDelta("Half"), KeyboardInterrupt()),
        (KeyboardInterrupt(),),
        (Failed(InvalidRequest("no").info),),
    ]
    assert talk(monkeypatch, daemon, ["one", "two", "three", "four"], scripts) == 0
    assert daemon.requests[-1].prompt == said("one", "Half", "four")
    out, err = capsys.readouterr()
    assert err.count("(stopped)") == 2
    assert "error: no" in err
    assert out == "Half\nBecause sunlight scatters.\n"


def test_a_daemon_that_has_left_is_replaced(
    daemon: FakeClient, capsys: Streams, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[str | None] = []

    def start(paths: object, settings: object, preload: str | None = None) -> FakeClient:
        started.append(preload)
        daemon.script = ANSWER
        return daemon

    monkeypatch.setattr(daemon, "connect_or_start", start)
    assert talk(monkeypatch, daemon, ["one", "two"], [ANSWER, (Failed(DaemonGone("gone").info),)]) == 0
    assert started == ["m:latest"]
    assert daemon.requests[1].prompt == daemon.requests[2].prompt == said("one", "Because sunlight scatters.\n", "two")
    assert "gone" not in capsys.readouterr().err


def test_it_outlives_its_daemon(daemon: FakeClient, capsys: Streams, monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[str | None] = []

    def start(paths: object, settings: object, preload: str | None = None) -> FakeClient:
        started.append(preload)
        return daemon

    monkeypatch.setattr(daemon, "connect_or_start", start)
    gone = Failed(DaemonGone("gone").info)
    assert talk(monkeypatch, daemon, ["one", "two", "three"], [ANSWER, (TextDelta("Half"), gone)]) == 0
    assert started == ["m:latest"]
    assert [request.prompt for request in daemon.requests][2:] == [said("one", "Because sunlight scatters.\n", "three")]
    assert "error: gone" in capsys.readouterr().err


def test_a_full_context_says_what_helps(daemon: FakeClient, capsys: Streams, monkeypatch: pytest.MonkeyPatch) -> None:
    full = Failed(ContextExceeded("the prompt has 9,000 tokens").info)
    assert talk(monkeypatch, daemon, ["one", "two"], [ANSWER, (full,)]) == 0
    assert "/clear begins anew" in capsys.readouterr().err


def test_files_that_a_question_names_go_along(
    daemon: FakeClient, capsys: Streams, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """As in the chat, and once only where a question is asked again."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "notes.md").write_text("# Notes")
    (tmp_path / "picture.png").write_bytes(b"\xff\xd8")
    assert talk(monkeypatch, daemon, ["Sum up @notes.md", "/retry", "See @picture.png", "And @none.md"]) == 0
    whole = "Sum up @notes.md\n\nnotes.md:\n```\n# Notes\n```"
    assert [request.prompt for request in daemon.requests[:2]] == [said(whole)] * 2
    assert daemon.requests[2].prompt == said(whole, "Because sunlight scatters.\n", "And @none.md")
    err = capsys.readouterr().err
    assert "error: picture.png is no text in UTF-8" in err
    assert "there is no file none.md; the question goes without it" in err


def test_ctrl_c_at_the_prompt_tells_how_to_leave(
    daemon: FakeClient, capsys: Streams, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert talk(monkeypatch, daemon, [KeyboardInterrupt(), "hi"]) == 0
    assert len(daemon.requests) == 1
    assert "Ctrl+D or /bye leaves." in capsys.readouterr().err


def test_settings(daemon: FakeClient, capsys: Streams, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = [
        "/set temperature 0",
        "/set top_k 7",
        "/set top_p 0.5",
        "/set seed 3",
        "/set preset code",
        "/set max_tokens 12",
        "/set system Be  brief.",
        "one",
        "/set temperature default",
        "/set system default",
        "/clear",
        "two",
        "/set",
        "/show",
    ]
    assert talk(monkeypatch, daemon, lines) == 0
    one, two = daemon.requests
    assert (one.sampling.temperature, one.sampling.top_k, one.sampling.top_p, one.sampling.seed) == (0.0, 7, 0.5, 3)
    assert (one.max_tokens, one.preset) == (12, "code")
    assert one.prompt == Messages((Message("system", "Be  brief."), Message("user", "one")))
    assert two.sampling.temperature is None
    assert two.prompt == said("two")
    assert "temperature   0.2 (recommended)" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("/set temperature -1", "takes 0 or more"),
        ("/set temperature hot", "takes 0 or more"),
        ("/set top_p nan", "above 0, to 1"),
        ("/set preset poetry", "one of chat, code"),
        ("/set top_k 1.5", "a whole number"),
        ("/set top_k 9999999999999999999999", "below 2^31"),  # more than the daemon takes
        ("/set max_tokens 2147483648", "below 2^31, 1 or more"),
        ("/set seed", "/set seed takes"),
        ("/set colour red", "nothing named colour"),
        ("/sett x", "did you mean /set"),
        ("/load /nowhere/at/all", "cannot be read"),
        ("/save /nowhere/at/all", "cannot be written"),
        ("/save", "name a file"),
        ("/retry", "nothing was asked"),
        ("/clear\nWhy is the sky blue?", "nothing can follow /clear"),
        ("/bye for now", "nothing can follow /bye"),
        ("/show info", "/show alone: the model, and what is set"),
        ("/save a.json\nWhy?", "nothing can follow the line of /save"),
    ],
)
def test_commands_that_cannot_be(
    line: str, words: str, daemon: FakeClient, capsys: Streams, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert talk(monkeypatch, daemon, [line]) == 0
    assert words in capsys.readouterr().err
    assert daemon.requests == []


def test_a_conversation_can_be_kept(
    daemon: FakeClient, tmp_path: Path, capsys: Streams, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "talk.json"
    assert talk(monkeypatch, daemon, ["/set system S", "one", f"/save {file}"]) == 0
    assert file.stat().st_mode & 0o077 == 0
    assert json.loads(file.read_text())["model"] == "m:latest"
    assert talk(monkeypatch, daemon, [f"/load {file}", "two"]) == 0
    turns = said("one", "Because sunlight scatters.\n", "two").messages
    assert daemon.requests[-1].prompt == Messages((Message("system", "S"), *turns))
    file.write_text("{}")
    assert talk(monkeypatch, daemon, [f"/load {file}"]) == 0
    assert "is no saved conversation" in capsys.readouterr().err


@pytest.mark.parametrize("kind", ["a folder", "a device without end", "notes", "no such user", "too long", "NUL"])
def test_what_cannot_be_kept_or_loaded_is_said_and_left_as_it_is(
    kind: str, daemon: FakeClient, tmp_path: Path, capsys: Streams, monkeypatch: pytest.MonkeyPatch
) -> None:
    notes = tmp_path / "notes"
    notes.write_text("mine")
    file = {
        "a folder": str(tmp_path),
        "a device without end": "/dev/zero",
        "notes": str(notes),
        "no such user": "~nobody-of-that-name/talk.json",
        "too long": "x" * 5000,
        "NUL": "a\0b",
    }[kind]
    assert talk(monkeypatch, daemon, ["one", f"/save {file}", f"/load {file}", "two"]) == 0
    told = capsys.readouterr().err
    assert told.count("error:") == 2, told
    assert notes.read_text() == "mine"
    assert daemon.requests[-1].prompt == said("one", "Because sunlight scatters.\n", "two"), "it goes on"


def test_retry_asks_again(daemon: FakeClient, monkeypatch: pytest.MonkeyPatch) -> None:
    assert talk(monkeypatch, daemon, ["one", "/retry"]) == 0
    assert [request.prompt for request in daemon.requests] == [said("one")] * 2


def test_blocks_in_triple_quotes() -> None:
    assert all(map(quoted, ('"""', '"""a\nb', ' """a')))
    assert not any(map(quoted, ('"""a\nb"""', '""""""', 'a """')))
    assert unquoted('"""\n a\n\nb\n"""') == " a\n\nb"
    assert unquoted('"""a"""') == "a"
    assert unquoted(' a "quoted" word') == ' a "quoted" word'
    assert unquoted('"""open') == '"""open'


def test_history_is_private_and_bounded(tmp_path: Path) -> None:
    file = tmp_path / "home" / "history"
    history = History(file)
    history.store_string("two\nlines")
    history.store_string(" a secret")
    assert file.stat().st_mode & 0o077 == 0
    assert list(History(file).load_history_strings()) == ["two\nlines"]
    for number in range(1200):
        history.store_string(f"{number} " + "x" * 1000)
    kept = list(History(file).load_history_strings())
    assert file.stat().st_size < 1 << 20
    assert file.stat().st_mode & 0o077 == 0
    assert 400 < len(kept) < 700
    assert kept[0].startswith("1199 ")
    assert all(text.endswith("x" * 1000) for text in kept)


def test_history_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    history = History(tmp_path / "file" / "history")
    history.store_string("one")
    assert list(history.load_history_strings()) == []
