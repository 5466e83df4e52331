"""The chat app without a terminal, before a scripted daemon or none."""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from typing import Any

import msgspec
from cli_fakes import put
from edgellm_tui.app import ChatApp
from edgellm_tui.history import History
from edgellm_tui.main import first
from edgellm_tui.widgets.turns import Reply
from fake_service import CARD, TOKEN, FakeService, Step, serving
from textual.pilot import Pilot

from edgellm import __version__, platform
from edgellm.client import DaemonInfo, info_path
from edgellm.config import Settings
from edgellm.paths import default_paths

SIZE = (80, 24)


@contextlib.contextmanager
def daemon(script: Sequence[Step]) -> Iterator[FakeService]:
    """A running daemon that answers by script, its model in the store. Needs the fixture `home`."""
    put(CARD.name)
    service = FakeService(script)
    with serving(service) as server:
        paths = default_paths()
        platform.make_private_folder(paths.runtime)
        info = DaemonInfo(server.url, os.getpid(), __version__, TOKEN)
        info_path(paths).write_bytes(msgspec.json.encode(info))
        try:
            yield service
        finally:
            info_path(paths).unlink(missing_ok=True)


@contextlib.contextmanager
def history() -> Iterator[History]:
    """What the app keeps in this test's home."""
    opened = History(default_paths().history)
    try:
        yield opened
    finally:
        opened.close()


@contextlib.asynccontextmanager
async def chatting(
    size: tuple[int, int] = SIZE, name: str | None = None, *, notices: bool = False
) -> AsyncIterator[tuple[ChatApp, Pilot[None]]]:
    """The app on a screen of that size, ready for keys; what goes wrong in it fails the test. `notices`: shown, too."""
    paths = default_paths()
    with history() as kept:
        app = ChatApp(paths, Settings(), kept, *first(paths, name))
        async with app.run_test(size=size, notifications=notices) as pilot:
            await until(lambda: app.chat.focused is not None)
            yield app, pilot


async def until(condition: Callable[[], Any], seconds: float = 60.0) -> None:
    """Wait until it holds, while the app goes on."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it never came"
        await asyncio.sleep(0.01)


async def ask(app: ChatApp, pilot: Pilot[None], text: str) -> None:
    """Type a question and send it; returns when its answer has begun."""
    before = len(app.chat.conversation.replies)
    app.chat.prompt.area.insert(text)
    await pilot.press("enter")
    await until(lambda: len(app.chat.conversation.replies) > before)


async def answered(app: ChatApp, pilot: Pilot[None]) -> Reply:
    """The last answer, complete, stopped or failed, and drawn."""
    await until(lambda: not app.chat.answering and app.chat.conversation.last is not None and settled(app))
    await pilot.pause()
    last = app.chat.conversation.last
    assert last is not None
    return last


def settled(app: ChatApp) -> bool:
    last = app.chat.conversation.last
    return last is not None and last.turn.state != "writing"


def screen(app: ChatApp) -> str:
    """What is on the screen, as text."""
    width, height = app.size
    strips = app.screen._compositor.render_strips()
    return "\n".join(strip.text[:width].rstrip() for strip in strips[:height])
