"""The chat app in rough weather: floods, pastes, resizing, dying daemons, long histories, a first start."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path

import pytest
from chat_app import answered, ask, chatting, daemon, history, screen, until
from edgellm_tui import pulls
from edgellm_tui.screens.models import ModelScreen
from edgellm_tui.widgets.empty import Offer
from edgellm_tui.widgets.sidebar import Sidebar
from fake_service import HELLO, Step, finish
from textual import events

from edgellm import client, launch
from edgellm.contracts.events import Started, TextDelta
from edgellm.contracts.request import Message, Messages
from edgellm.errors import DownloadFailed
from edgellm.library.pull import PullProgress, PullResult
from edgellm.paths import default_paths

FAKE = Path(__file__).parent.parent.parent / "fake_daemon.py"


def flood(tokens: int, gap_s: float = 0.0) -> list[Step]:
    """Numbered lines, a token each."""
    script: list[Step] = [Started(7, 0, 1)]
    for number in range(tokens):
        script.append(TextDelta(f"line {number}\n\n"))
        if gap_s:
            script.append(gap_s)
    return [*script, *finish("the end")]


def page(shown: str) -> list[str]:
    """The conversation, without its scrollbar."""
    return [line[:78].rstrip() for line in shown.splitlines()[1:-3]]


def test_scrolling_up_while_text_comes_keeps_the_place(home: Path) -> None:
    async def use() -> None:
        async with chatting() as (app, pilot):
            await ask(app, pilot, "count")
            conversation = app.chat.conversation
            await until(lambda: conversation.virtual_size.height > 60 and conversation.scroll_y > 30)  # it follows
            await pilot.press("pageup")
            await pilot.pause()
            place = conversation.scroll_y
            seen = page(screen(app))
            assert any("line " in line for line in seen)
            height = conversation.virtual_size.height
            scrolled.set()
            await until(lambda: conversation.virtual_size.height > height + 20)
            assert conversation.scroll_y == place
            assert page(screen(app)) == seen
            await pilot.press("ctrl+end")
            await answered(app, pilot)
            await until(lambda: "the end" in screen(app))

    scrolled = threading.Event()

    async def hold() -> None:
        await asyncio.to_thread(scrolled.wait, 60)

    script = flood(120)
    with daemon([*script[:60], hold, *script[60:]]):
        asyncio.run(use())


def test_a_resize_while_text_comes_loses_none_of_it(home: Path) -> None:
    async def use() -> None:
        async with chatting() as (app, pilot):
            await ask(app, pilot, "count")
            for size in ((120, 40), (40, 12), (200, 60), (80, 24)):
                await pilot.resize_terminal(*size)
                await asyncio.sleep(0.1)
            reply = await answered(app, pilot)
            assert reply.turn.text == "".join(f"line {number}\n\n" for number in range(60)) + "the end"
            await until(lambda: "the end" in screen(app) and "this device" in screen(app).splitlines()[-4])

    with daemon(flood(60, 0.01)):
        asyncio.run(use())


def test_a_large_paste_arrives_whole(home: Path) -> None:
    pasted = "".join(f"{number}: some words \x1b[31m in a line\r\n" for number in range(3400))
    assert len(pasted) > 100_000

    async def use() -> None:
        async with chatting() as (app, pilot):
            app.post_message(events.Paste(pasted))
            await until(lambda: app.chat.prompt.text.count("\n") == 3400)
            await pilot.pause()
            assert app.chat.prompt.size.height <= 10
            await pilot.press("enter")
            await answered(app, pilot)
            assert "… 3,360 more lines" in screen(app)

    with daemon(HELLO) as service:
        asyncio.run(use())
    (prompt,) = [request.prompt for request in service.requests]
    assert prompt == Messages((Message("user", pasted.replace("\r\n", "\n").replace("\x1b", "␛")),))


def test_one_very_long_line_can_be_pasted(home: Path) -> None:
    async def use() -> None:
        async with chatting() as (app, pilot):
            app.post_message(events.Paste("word " * 20_000))
            await until(lambda: len(app.chat.prompt.text) == 100_000)
            await pilot.press("x")
            await pilot.pause()
            assert app.chat.prompt.text.endswith("x")

    with daemon(HELLO):
        asyncio.run(use())


def fake_argv(seconds: float) -> list[str]:
    return [sys.executable, str(FAKE), str(seconds), "--detached", "--settings", '{"port": 0}']


def test_a_daemon_that_dies_under_an_answer(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What came stays; enter starts another daemon and asks again; one that left meanwhile is no failure at all."""
    thought = iter((60.0, 0.0, 0.0))
    monkeypatch.setattr(launch, "daemon_argv", lambda *_: fake_argv(next(thought)))

    async def use() -> None:
        async with chatting() as (app, pilot):
            await ask(app, pilot, "one")
            await until(lambda: "Hel" in screen(app))
            info = client.read_info(default_paths())
            assert info is not None
            kill(info.pid)
            reply = await answered(app, pilot)
            assert (reply.turn.state, reply.turn.text) == ("failed", "Hel")
            assert "broke off" in screen(app)
            await pilot.press("enter")
            await until(lambda: len(app.chat.conversation.replies) == 2)
            assert (await answered(app, pilot)).turn.text == "Hello"
            info = client.read_info(default_paths())
            assert info is not None
            kill(info.pid)
            await ask(app, pilot, "two")
            reply = await answered(app, pilot)
            assert (reply.turn.state, reply.turn.text) == ("done", "Hello")

    from cli_fakes import put

    put("fake")
    try:
        asyncio.run(use())
    finally:
        with client.DaemonClient.find(default_paths()) or pytest.fail("no daemon") as last:
            assert last.shutdown(10)
    with history() as kept:
        (found,) = kept.conversations(9)
        assert [turn.text for turn in kept.turns(found.id)] == ["one", "Hel", "Hello", "two", "Hello"]


def kill(pid: int) -> None:
    import psutil

    process = psutil.Process(pid)
    process.kill()
    process.wait(60)


KILLED = """
import asyncio, os, signal, sys
sys.path.insert(0, sys.argv[1])
from chat_app import ask, chatting, daemon, history, screen, until
from fake_service import Started, TextDelta

async def use():
    async with chatting() as (app, pilot):
        await ask(app, pilot, "tell me")
        await until(lambda: "Half of it" in screen(app))
        with history() as kept:
            (found,) = kept.conversations(9)
            await until(lambda: kept.turns(found.id)[-1].text == "Half of it")
        os.kill(os.getpid(), signal.SIGKILL)

with daemon((Started(7, 0, 1), TextDelta("Half of it"), 60.0)):
    asyncio.run(use())
"""


@pytest.mark.skipif(sys.platform == "win32", reason="no SIGKILL there")
def test_an_app_that_is_killed_shows_the_answer_as_interrupted_and_can_go_on(home: Path) -> None:
    tests = str(FAKE.parent)
    assert subprocess.run([sys.executable, "-c", KILLED, tests], timeout=60, check=False).returncode == -9

    async def use() -> None:
        async with chatting() as (app, pilot):
            await pilot.press("ctrl+r")
            await until(lambda: "tell me" in screen(app))
            await pilot.press("enter")
            await until(lambda: "interrupted" in screen(app))
            assert "Half of it" in screen(app)
            await pilot.press("enter")
            await until(lambda: len(app.chat.conversation.replies) == 2)
            assert (await answered(app, pilot)).turn.text == "Hello"

    with daemon(HELLO) as service:
        asyncio.run(use())
    assert service.requests[0].prompt == Messages((Message("user", "tell me"),))


def long_history(turns: int) -> None:
    with history() as kept:
        held, _ = kept.ask(None, "the first of all", "fake:latest")
        kept._db.executemany(
            "INSERT INTO turn (conversation, role, text, created) VALUES (?, ?, ?, 0)",
            [(held.id, ("assistant", "user")[n % 2], f"**turn** {n}\n\n- a\n- b\n") for n in range(turns - 1)],
        )
        kept._db.commit()


def test_a_conversation_of_ten_thousand_turns_opens_at_its_end_and_scrolls_to_its_beginning(home: Path) -> None:
    async def use() -> None:
        async with chatting() as (app, pilot):
            await pilot.press("ctrl+r")
            await until(lambda: "the first of all" in screen(app))
            await pilot.press("enter")  # how fast: benchmarks/chat.py
            await until(lambda: "turn 9998" in screen(app))
            conversation = app.chat.conversation
            assert len(conversation.children) < 50
            first = conversation.first_id
            for _ in range(12):
                await pilot.press("pageup")
            await until(lambda: conversation.first_id != first)
            await pilot.pause()
            seen = [line for line in screen(app).splitlines() if "turn" in line]
            assert seen
            assert "turn 9998" not in screen(app)

    with daemon(HELLO):
        long_history(10_000)
        asyncio.run(use())


def test_earlier_turns_come_without_moving_what_is_read(home: Path) -> None:
    async def use() -> None:
        async with chatting() as (app, pilot):
            await pilot.press("ctrl+r")
            await until(lambda: "the first of all" in screen(app))
            await pilot.press("enter")
            await until(lambda: "turn 198" in screen(app))
            conversation = app.chat.conversation
            first = conversation.first_id
            before = screen(app)
            while conversation.first_id == first:
                before = screen(app)
                conversation.scroll_relative(y=-3, animate=False)
                await pilot.pause()
            await until(lambda: conversation.scroll_y > 20)
            await pilot.pause()
            kept = next(line for line in before.splitlines() if "turn " in line)
            assert kept in screen(app)

    with daemon(HELLO):
        long_history(200)
        asyncio.run(use())


def test_a_first_start_offers_the_starter_and_pulls_it(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from cli_fakes import put

    steps: Sequence[PullProgress] = (PullProgress("resolve"), PullProgress("download", 47 << 20, 94 << 20))
    fails = [True, False]
    seen = threading.Event()

    def fake_pull(name: str, *, paths: object, report: object) -> PullResult:
        assert callable(report)
        for step in steps:
            report(step)
        seen.wait(60)
        if fails.pop(0):
            raise DownloadFailed("the index does not answer", hint="check the connection")
        return PullResult(put(name), already=False)

    monkeypatch.setattr(pulls, "pull", fake_pull)

    async def use() -> None:
        async with chatting() as (app, pilot):
            assert "Nothing to talk to yet" in screen(app)
            assert "smollm2:135m · Q4_1 · 94 MiB · Apache-2.0" in screen(app)
            await pilot.press(*"hi", "enter")
            await pilot.pause()
            assert app.chat.prompt.text == "hi"  # nobody is there to ask yet, and nothing is lost
            await pilot.press("backspace", "backspace", "enter")
            await until(lambda: "downloading 47 MiB of 94 MiB" in screen(app))
            seen.set()
            await until(lambda: "the index does not answer. check the connection" in screen(app))
            await pilot.press("enter")
            await until(lambda: "It runs on this computer" in screen(app))
            assert not app.chat.query(Offer)
            assert app.chat.session.model == "smollm2:135m"

    asyncio.run(use())


def test_a_model_is_fetched_while_the_chat_goes_on(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from cli_fakes import put

    talked = threading.Event()

    def fake_pull(name: str, *, paths: object, report: object) -> PullResult:
        assert callable(report)
        for percent in range(0, 100, 10):
            report(PullProgress("download", percent, 100))
            if percent == 20:
                talked.wait(60)
        return PullResult(put(name), already=False)

    monkeypatch.setattr(pulls, "pull", fake_pull)

    async def use() -> None:
        async with chatting() as (app, pilot):
            await pilot.press("ctrl+o", *"smol")
            await until(lambda: isinstance(app.screen, ModelScreen) and app.screen.highlighted == "smollm2:135m")
            await pilot.press("enter")
            await until(lambda: "fetching 20 %" in screen(app))
            await pilot.press("escape")
            await ask(app, pilot, "meanwhile")
            await answered(app, pilot)
            assert app.pulls.running("smollm2:135m")
            talked.set()
            await until(lambda: not app.pulls.running("smollm2:135m"))
            assert app.chat.session.model == "fake:latest"  # what one talks to does not change by itself
            await pilot.press("ctrl+o", *"smol")
            await until(lambda: isinstance(app.screen, ModelScreen) and app.screen.highlighted == "smollm2:135m")
            await pilot.press("enter")
            await until(lambda: app.chat.session.model == "smollm2:135m")

    with daemon(HELLO):
        asyncio.run(use())


def test_conversations_stand_at_the_left_where_there_is_room(home: Path) -> None:
    async def use() -> None:
        async with chatting((120, 40)) as (app, pilot):
            for question in ("about whales", "about birds"):
                await pilot.press("ctrl+n")
                await ask(app, pilot, question)
                await answered(app, pilot)
            sidebar = app.chat.query_one(Sidebar)
            await until(lambda: sidebar.display and sidebar.option_count == 2)
            await pilot.press("ctrl+b", "down", "enter")
            held = app.chat.session
            await until(lambda: held.conversation is not None and held.conversation.title == "about whales")
            await pilot.resize_terminal(80, 24)
            await until(lambda: not sidebar.display)
            await pilot.resize_terminal(120, 40)
            await until(lambda: sidebar.display)
            await pilot.press("ctrl+b", "ctrl+b")
            await until(lambda: not sidebar.display)

    with daemon(HELLO):
        asyncio.run(use())
