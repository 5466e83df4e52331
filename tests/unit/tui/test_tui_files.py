"""Files that a question names."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest
from chat_app import answered, ask, chatting, daemon, until
from fake_service import HELLO

from edgellm.contracts.request import Message, Messages
from edgellm.errors import InvalidRequest
from edgellm.mentions import missing, with_files


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_its_text_follows_the_question(here: Path) -> None:
    (here / "a.md").write_bytes("\ufeffü\r\nzwei\n".encode())
    (here / "with spaces.py").write_text("'''\n````\n'''")
    told = with_files('Compare @a.md and @"with spaces.py", please')
    assert told == (
        'Compare @a.md and @"with spaces.py", please\n\na.md:\n```\nü\nzwei\n```\n\n'
        "with spaces.py:\n`````\n'''\n````\n'''\n`````"
    )


def test_what_ends_a_sentence_is_no_part_of_a_name(here: Path) -> None:
    (here / "a.md").write_text("one")
    (here / "b.").write_text("two")
    assert with_files("Is it in @a.md?") == "Is it in @a.md?\n\na.md:\n```\none\n```"
    assert with_files("(see @a.md).") == "(see @a.md).\n\na.md:\n```\none\n```"
    assert with_files("see @b.") == "see @b.\n\nb.:\n```\ntwo\n```"


@pytest.mark.parametrize(
    "text", ["me@a.md", "@nobody says", "@", '@""', "@" + "x" * 5000, "@a\0b", "@/dev/zero", "@.", "@~nobody-here/x"]
)
def test_what_names_no_file_stays_what_it_is(text: str, here: Path) -> None:
    (here / "a.md").write_text("not meant")
    assert with_files(text) == text


def test_what_is_no_text_is_refused(here: Path) -> None:
    (here / "picture").write_bytes(b"\x89PNG\xff\xfe")
    with pytest.raises(InvalidRequest, match="picture is no text"):
        with_files("What is on @picture")
    with (here / "huge").open("wb") as file:
        file.truncate(5 << 20)
    with pytest.raises(InvalidRequest, match="huge cannot be read: it is larger than 4 MiB"):
        with_files("@huge")
    if hasattr(os, "mkfifo"):
        os.mkfifo(here / "pipe")
        assert with_files("@pipe") == "@pipe"


def test_names_of_files_that_are_not_there_are_told(home: Path, here: Path) -> None:
    (here / "a.md").write_text("one")
    (here / "folder").mkdir()
    text = 'In @a.md, @b.md, @c/d @folder and @"e f.txt": ask @nobody, me@g.md, @2.5 or @. And @b.md?'
    assert missing(text) == ["b.md", "c/d", "folder", "e f.txt"]
    assert missing("@" + "x/" * 5000 + " @a\0b.md") == ["x/" * 5000, "a\0b.md"]

    async def use() -> None:
        async with chatting() as (app, pilot):
            await ask(app, pilot, "see @b.md")
            await until(lambda: any("there is no file b.md" in str(told.message) for told in app._notifications))
            await answered(app, pilot)

    with daemon(HELLO):
        asyncio.run(use())


def test_it_is_sent_and_a_refusal_loses_nothing(home: Path, here: Path) -> None:
    (here / "note").write_text("remember")
    (here / "bad").write_bytes(b"\xff")

    async def use() -> None:
        async with chatting() as (app, pilot):
            app.chat.prompt.area.insert("see @bad")
            await pilot.press("enter")
            await until(lambda: app._notifications and app.chat.prompt.text == "see @bad" and not app.chat.answering)
            app.chat.prompt.area.text = ""
            await ask(app, pilot, "see @note")
            await answered(app, pilot)

    with daemon(HELLO) as service:
        asyncio.run(use())
    (request,) = service.requests
    assert request.prompt == Messages((Message("user", "see @note\n\nnote:\n```\nremember\n```"),))
