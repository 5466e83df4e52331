"""The chat app when something under it gives way: it says so and goes on."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from chat_app import answered, ask, chatting, daemon, screen, until
from cli_fakes import put
from edgellm_tui import messages, pulls, trouble
from edgellm_tui.app import ChatApp
from edgellm_tui.bridge import listed
from fake_service import HELLO

from edgellm.contracts.events import Failed, Started, TextDelta
from edgellm.errors import ContextExceeded
from edgellm.library.pull import PullResult
from edgellm.paths import default_paths


def told(app: ChatApp) -> list[str]:
    """What it notified of and still shows."""
    return [str(notification.message) for notification in app._notifications]


def test_lines_typed_by_a_machine_during_an_answer_stay_in_the_prompt_and_are_refused_once(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("edgellm_tui.screens.chat._TOLD_S", 600.0)  # however long sixty lines take

    async def use() -> None:
        async with chatting() as (app, pilot):
            await ask(app, pilot, "one")
            for _ in range(60):
                app.chat.prompt.area.insert("line ")
                await pilot.press("enter")
            await pilot.pause()
            assert app.chat.prompt.text == "line " * 60
            assert sum("still coming" in text for text in told(app)) == 1
            await pilot.press("escape")
            await answered(app, pilot)
            await pilot.press("enter")
            await until(lambda: app.chat.prompt.text == "")

    with daemon((Started(7, 0, 1), TextDelta("Hel"), 100.0)) as service:
        asyncio.run(use())
    assert [request.prompt.messages[-1].content for request in service.requests] == ["one", "line " * 60]  # type: ignore[union-attr]


def test_a_history_that_fails_meanwhile_ends_nothing(home: Path) -> None:
    async def use() -> None:
        async with chatting((120, 40)) as (app, pilot):
            await ask(app, pilot, "Hi")
            await answered(app, pilot)
            app.history.close()  # from here on every use of it fails, as on a disk that is full or gone
            await pilot.press("ctrl+b", "ctrl+b")
            app.theme = "textual-light"
            app.chat.post_message(messages.EarlierWanted())
            await until(lambda: any("history of conversations cannot be used" in text for text in told(app)))
            app.chat.prompt.area.focus()
            app.chat.prompt.area.insert("And now?")
            await pilot.press("enter")
            await until(lambda: not app.chat.answering)
            await until(lambda: app.chat.prompt.text == "And now?")  # it could not be kept, and is not lost
            await pilot.press("ctrl+r", "escape", "ctrl+n")
            await until(lambda: "It runs on this computer" in screen(app))
            assert app.is_running

    with daemon(HELLO):
        asyncio.run(use())


def test_a_conversation_that_is_too_long_says_what_one_can_do_here(home: Path) -> None:
    async def use() -> None:
        async with chatting() as (app, pilot):
            await ask(app, pilot, "Hi")
            await answered(app, pilot)
            assert "the prompt has 9,000 tokens" in screen(app)
            assert "ctrl+n begins a new conversation" in screen(app)
            assert "--context" not in screen(app)

    long = ContextExceeded("the prompt has 9,000 tokens; this takes 8,192", hint="raise the context (--context)")
    with daemon((Failed(long.info),)):
        asyncio.run(use())


def test_a_pull_that_fails_unforeseen_is_told_and_can_be_tried_again(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fails = [True, False]

    def fake_pull(name: str, *, paths: object, report: object) -> PullResult:
        if fails.pop(0):
            raise ValueError("of all things")
        return PullResult(put(name), already=False)

    monkeypatch.setattr(pulls, "pull", fake_pull)

    async def use() -> None:
        async with chatting() as (app, pilot):
            await pilot.press("enter")
            await until(lambda: "internal error: ValueError: of all things" in screen(app))
            await pilot.press("enter")
            await until(lambda: "It runs on this computer" in screen(app))

    asyncio.run(use())
    assert "ValueError: of all things" in trouble.log_of(default_paths()).read_text()


def test_only_what_can_be_talked_to_is_offered_and_what_was_not_weighed_comes_last(home: Path) -> None:
    put("here")
    found = listed(default_paths(), set())
    assert found[0].name == "here:latest"
    offered = found[1:]
    assert not any("embed" in model.name or "bge" in model.name for model in offered)
    sizes = [model.size for model in offered]
    assert 0 in sizes, "the catalogue knows some without their size"
    weighed = [size for size in sizes if size]
    assert sizes == sorted(weighed) + [0] * (len(sizes) - len(weighed))


def test_a_list_says_nothing_of_sizes_it_does_not_know(home: Path) -> None:
    put("here")

    async def use() -> None:
        async with chatting() as (app, pilot):
            await pilot.press("ctrl+o", *"mistral")
            await until(lambda: "mistral:7b" in screen(app))
            assert "0 B" not in screen(app)
            assert "enter chooses, or fetches" in screen(app)

    asyncio.run(use())
