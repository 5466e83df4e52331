"""The chat app, a real daemon that it starts itself, and the real model."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from chat_app import answered, ask, chatting, history, screen, until
from edgellm_tui.app import ChatApp
from edgellm_tui.widgets.turns import Reply
from real_daemon import ENDLESS, MODEL, home_with_model
from textual.pilot import Pilot

from edgellm.client import DaemonClient

pytestmark = pytest.mark.slow


def test_a_conversation_with_the_starter_model(starter: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    paths = home_with_model(starter, tmp_path, monkeypatch)
    monkeypatch.setenv("EDGELLM_TEMPERATURE", "0")  # drawn, this small model's answer is not always right

    async def use() -> None:
        async with chatting() as (app, pilot):
            await until(lambda: MODEL in screen(app))
            await ask(app, pilot, "What is the capital of France? Answer in one short sentence.")
            reply = await patient(app, pilot)
            assert reply.turn.state == "done", reply.turn.error
            assert "Paris" in reply.turn.text
            await until(lambda: "this device · " in screen(app) and "tok/s" in screen(app))
            app.chat.prompt.area.insert(f"/set frequency_penalty {ENDLESS.frequency_penalty}")
            await pilot.press("enter")
            await until(lambda: app.chat.session.wishes.sampling == ENDLESS)
            await ask(app, pilot, "Count from 1 to 1000, one number on each line.")
            await until(lambda: len(reply_text(app)) > 40, 90)
            await pilot.press("escape")
            stopped = await patient(app, pilot)
            assert stopped.turn.state == "stopped"
            await until(lambda: idle(), 10)

    def idle() -> bool:
        client = DaemonClient.find(paths)
        assert client is not None
        with client:
            return not any(model.running for model in client.ps())

    try:
        asyncio.run(use())
    finally:
        client = DaemonClient.find(paths)
        if client is not None:
            assert client.shutdown(60)
    with history() as kept:
        (found,) = kept.conversations(9)
        assert [turn.state for turn in kept.turns(found.id)] == ["done", "done", "done", "stopped"]


def reply_text(app: ChatApp) -> str:
    last = app.chat.conversation.last
    return last.text if last is not None else ""


async def patient(app: ChatApp, pilot: Pilot[None]) -> Reply:
    """A loaded machine takes its time."""
    await until(lambda: not app.chat.answering, 90)
    return await answered(app, pilot)
