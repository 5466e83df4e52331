"""The chat app before a scripted daemon: what the keys do, what is shown, and that nothing is lost."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

import pytest
from chat_app import answered, ask, chatting, daemon, history, screen, until
from cli_fakes import put
from edgellm_tui import messages
from edgellm_tui.main import first
from edgellm_tui.screens.help import HelpScreen
from edgellm_tui.screens.models import ModelScreen
from edgellm_tui.screens.resume import ResumeScreen
from fake_service import HELLO, finish
from textual.widgets import OptionList

from edgellm.contracts.events import Failed, Progress, ReasoningDelta, Started, TextDelta
from edgellm.contracts.request import Message, Messages
from edgellm.errors import WorkerDied
from edgellm.library.latest import latest, remember
from edgellm.library.store import Store
from edgellm.paths import default_paths


def test_a_question_is_answered_and_the_footer_says_how(home: Path) -> None:
    async def use() -> str:
        async with chatting() as (app, pilot):
            assert "It runs on this computer" in screen(app)
            await ask(app, pilot, "Hi there")
            reply = await answered(app, pilot)
            assert reply.turn.text == "Hello"
            return screen(app)

    with daemon(HELLO):
        shown = asyncio.run(use())
    lines = [line.strip() for line in shown.splitlines()]
    assert lines[0].startswith("edgellm ─")
    assert lines[0].endswith("fake:latest · Q4_1 · this device")
    at = lines.index("you")
    assert at < 4  # a short conversation stands at the top
    assert lines[at + 1] == "Hi there"
    assert lines[at + 3 : at + 5] == ["fake:latest", "Hello"]
    assert lines[at + 5].startswith("this device · ")
    assert lines[at + 5].endswith(" · 10 tok/s · 7 + 5 (3 cached)")
    assert lines[-1].startswith("enter send  ^j newline  ^o model")


def test_the_conversation_so_far_goes_along(home: Path) -> None:
    async def use() -> None:
        async with chatting() as (app, pilot):
            for question in ("one", "two"):
                await ask(app, pilot, question)
                await answered(app, pilot)
            await pilot.press("ctrl+n")
            await ask(app, pilot, "three")
            await answered(app, pilot)

    with daemon(HELLO) as service:
        asyncio.run(use())
    said = [request.prompt for request in service.requests]
    assert said[1] == Messages((Message("user", "one"), Message("assistant", "Hello"), Message("user", "two")))
    assert said[2] == Messages((Message("user", "three"),))
    with history() as kept:
        assert [each.title for each in kept.conversations(9)] == ["three", "one"]


def test_keys_typed_in_one_breath_keep_their_order(home: Path) -> None:
    async def use() -> None:
        async with chatting() as (app, pilot):
            await pilot.press(*"one", "ctrl+j", *"two", "enter", *"three")
            await answered(app, pilot)
            await until(lambda: app.chat.prompt.text == "three")

    with daemon(HELLO) as service:
        asyncio.run(use())
    assert service.requests[0].prompt == Messages((Message("user", "one\ntwo"),))


def test_escape_stops_an_answer_also_before_it_has_begun(home: Path) -> None:
    async def use() -> list[str]:
        async with chatting() as (app, pilot):
            await ask(app, pilot, "long prompt")
            await until(lambda: "reading the prompt … 30 %" in screen(app))
            await pilot.press("escape")
            reply = await answered(app, pilot)
            assert reply.turn.state == "stopped"
            assert "stopped before it began" in screen(app)
            service.script = (Started(7, 0, 1), TextDelta("Half an ans"), 30.0)
            await ask(app, pilot, "another")
            await until(lambda: "Half an ans" in screen(app))
            await pilot.press("escape")
            reply = await answered(app, pilot)
            return [reply.turn.state, reply.turn.text]

    with daemon((Progress("prefill", 0.3), 30.0)) as service:
        assert asyncio.run(use()) == ["stopped", "Half an ans"]
        asyncio.run(until(lambda: len(service.closed) == 2, 25))
    assert service.requests[1].prompt == Messages((Message("user", "another"),))  # the unanswered one is left out


def test_a_failure_is_told_and_enter_tries_again(home: Path) -> None:
    async def use() -> None:
        async with chatting() as (app, pilot):
            await ask(app, pilot, "Hi")
            reply = await answered(app, pilot)
            assert (reply.turn.state, reply.turn.text) == ("failed", "Half")
            shown = screen(app)
            assert "Half" in shown
            assert "✗ the model's process died" in shown
            assert "enter try again" in shown.splitlines()[-1]
            service.script = HELLO
            await pilot.press("enter")
            await until(lambda: len(app.chat.conversation.replies) == 2)
            reply = await answered(app, pilot)
            assert reply.turn.text == "Hello"

    died = Failed(WorkerDied("the model's process died").info)
    with daemon((Started(7, 0, 1), TextDelta("Half"), died)) as service:
        asyncio.run(use())
    assert service.requests[0].prompt == service.requests[1].prompt
    with history() as kept:
        (found,) = kept.conversations(9)
        assert [(turn.text, turn.state) for turn in kept.turns(found.id)] == [
            ("Hi", "done"),
            ("Half", "failed"),
            ("Hello", "done"),
        ]


def test_a_question_during_an_answer_stays_in_the_prompt(home: Path) -> None:
    async def use() -> None:
        async with chatting() as (app, pilot):
            await ask(app, pilot, "one")
            app.chat.prompt.area.insert("two")
            await pilot.press("enter")
            await pilot.pause()
            assert app.chat.prompt.text == "two"
            await pilot.press("escape")
            await answered(app, pilot)

    with daemon((Started(7, 0, 1), TextDelta("Hel"), 30.0)) as service:
        asyncio.run(use())
    assert len(service.requests) == 1


def test_earlier_conversations_are_found_and_resumed(home: Path) -> None:
    async def use() -> None:
        async with chatting() as (app, pilot):
            await ask(app, pilot, "about whales")
            await answered(app, pilot)
            await pilot.press("ctrl+n")
            await ask(app, pilot, "about birds")
            await answered(app, pilot)
            await pilot.press("ctrl+r")
            await until(lambda: isinstance(app.screen, ResumeScreen))
            await pilot.press(*"whal")
            await until(lambda: app.screen.query_one(OptionList).option_count == 1)
            await pilot.press("enter")
            await until(lambda: app.screen is app.chat and "about whales" in screen(app))
            assert "about birds" not in screen(app)
            service.script = finish("More.")
            await ask(app, pilot, "go on")
            await answered(app, pilot)

    with daemon(HELLO) as service:
        asyncio.run(use())
    last = service.requests[-1].prompt
    assert isinstance(last, Messages)
    assert [message.content for message in last.messages] == ["about whales", "Hello", "go on"]


def test_a_conversation_is_removed_when_asked_twice(home: Path) -> None:
    async def use() -> None:
        async with chatting() as (app, pilot):
            await ask(app, pilot, "secret")
            await answered(app, pilot)
            await pilot.press("ctrl+r")
            await until(lambda: isinstance(app.screen, ResumeScreen))
            await pilot.press("delete")
            await until(lambda: "once more" in screen(app))
            await pilot.press("delete")
            await until(lambda: "no conversations yet" in screen(app))
            await pilot.press("escape")
            await until(lambda: app.screen is app.chat and "It runs on this computer" in screen(app))

    with daemon(HELLO):
        asyncio.run(use())
    with history() as kept:
        assert kept.conversations(9) == []


def test_models_are_chosen_from_a_list_and_help_is_a_key_away(home: Path) -> None:
    async def use() -> None:
        async with chatting() as (app, pilot):
            await pilot.press("f1")
            await until(lambda: isinstance(app.screen, HelpScreen))
            assert "ctrl+o" in screen(app)
            await pilot.press("escape")
            await until(lambda: app.screen is app.chat)
            await pilot.press("ctrl+o")
            await until(lambda: isinstance(app.screen, ModelScreen) and "fake:latest" in screen(app))
            shown = screen(app)
            assert "loaded" in shown
            assert shown.index("fake:latest") < shown.index("can be fetched") < shown.index("smollm2:135m")
            await pilot.press("enter")
            await until(lambda: app.screen is app.chat)

    with daemon(HELLO):
        asyncio.run(use())


def test_a_thought_is_open_while_it_comes_and_folds_when_the_answer_begins(home: Path) -> None:
    async def use() -> None:
        async with chatting() as (app, pilot):
            await ask(app, pilot, "Hard?")
            await until(lambda: "two and two" in screen(app))
            assert "▾ thinking" in screen(app)
            await pilot.press("escape")
            service.script = (Started(7, 0, 1), ReasoningDelta("Let me count."), *finish("Four."))
            await pilot.press("f5")
            await until(lambda: len(app.chat.conversation.replies) == 2)
            reply = await answered(app, pilot)
            assert (reply.turn.thought, reply.turn.text) == ("Let me count.", "Four.")
            shown = screen(app)
            assert "▸ thought" in shown
            assert "Let me count." not in shown
            await pilot.press("ctrl+t")
            await until(lambda: "Let me count." in screen(app))

    with daemon((Started(7, 0, 1), ReasoningDelta("It is two and two."), 30.0)) as service:
        asyncio.run(use())


def test_garbage_is_collected_when_nothing_comes_and_nothing_is_typed(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    collected: list[bool] = []
    monkeypatch.setattr("edgellm_tui.screens.chat.IDLE_S", 0.2)
    monkeypatch.setattr("edgellm_tui.screens.chat.tidy", lambda: collected.append(True))

    async def use() -> None:
        async with chatting() as (app, pilot):
            await pilot.pause(0.5)
            assert collected == [], "nothing was answered yet"
            await ask(app, pilot, "Hi")
            await until(lambda: app.chat.conversation.replies)
            await pilot.pause(0.5)
            assert app.chat.answering
            assert collected == [], "the answer is coming"
            waited.set()
            await answered(app, pilot)
            await until(lambda: collected)
            await pilot.pause(0.5)
            assert collected == [True], "once for an answer"

    waited = threading.Event()

    async def hold() -> None:
        await asyncio.to_thread(waited.wait, 60)

    with daemon((Started(7, 0, 1), TextDelta("Hel"), hold, TextDelta("lo"), *finish("Hello"))):
        asyncio.run(use())


def test_the_header_says_what_answers_in_an_earlier_conversation(home: Path) -> None:
    async def use() -> None:
        async with chatting(name="fake") as (app, _):
            app.chat.post_message(messages.ConversationChosen(1))
            await until(lambda: screen(app).splitlines()[0].endswith("other:latest · Q4_1 · this device"))

    with daemon(HELLO):
        put("other")
        with history() as kept:
            kept.ask(None, "Hi", "other:latest")
        asyncio.run(use())


def test_the_chat_opens_with_the_model_last_talked_to(home: Path) -> None:
    """Not with one that a program asked later, nor with one that only continues text."""
    paths = default_paths()

    def chosen() -> str:
        model, _ = first(paths, None)
        assert model is not None
        return model.name

    async def talk() -> None:
        async with chatting(name="fake") as (app, pilot):
            await ask(app, pilot, "Hi")
            await answered(app, pilot)

    with daemon(HELLO):
        put("base", chat=False)
        put("other")
        Store(paths).touch("other")
        Store(paths).touch("base")
        assert chosen() == "other:latest"
        asyncio.run(talk())
        Store(paths).touch("other")
        assert (latest(paths), chosen()) == ("fake:latest", "fake:latest")
        remember(paths, "gone:latest")
        assert chosen() == "other:latest"
