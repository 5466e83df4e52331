"""Slash commands and settings of the chat app."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from chat_app import answered, ask, chatting, daemon, screen, until
from cli_fakes import put
from edgellm_tui.app import ChatApp
from edgellm_tui.screens.help import HelpScreen
from edgellm_tui.screens.settings import SettingsScreen
from fake_service import CARD, HELLO
from textual.pilot import Pilot

from edgellm.contracts.request import GenerateRequest, Message, Messages, Sampling, Text
from edgellm.errors import InvalidRequest
from edgellm.wishes import SETTINGS, Wishes


async def say(app: ChatApp, pilot: Pilot[None], text: str) -> None:
    """Type a command and send it."""
    app.chat.prompt.area.insert(text)
    await pilot.press("enter")
    await until(lambda: app.chat.prompt.text == "")
    await pilot.pause()


def told(app: ChatApp) -> str:
    return "\n".join(str(notification.message) for notification in app._notifications)


def test_what_is_set_goes_with_the_next_question_and_is_kept(home: Path) -> None:
    async def use() -> None:
        async with chatting() as (app, pilot):
            await say(app, pilot, "/set temperature 0.25")
            await say(app, pilot, "/set system Be brief.")
            assert "temperature, system set" in screen(app)
            await ask(app, pilot, "Hi")
            await answered(app, pilot)
        async with chatting() as (app, pilot):
            await say(app, pilot, "/set system default")
            await say(app, pilot, "/set parameter max_tokens 9")
            await ask(app, pilot, "Hi")
            await answered(app, pilot)

    with daemon(HELLO) as service:
        asyncio.run(use())
    first, second = service.requests
    assert first.prompt == Messages((Message("system", "Be brief."), Message("user", "Hi")))
    assert first.sampling == Sampling(temperature=0.25)
    assert second.prompt == Messages((Message("user", "Hi"),))
    assert (second.sampling, second.max_tokens) == (Sampling(temperature=0.25), 9)


def test_commands_do_what_keys_do(home: Path) -> None:
    async def use() -> None:
        async with chatting(name=CARD.name) as (app, pilot):
            await ask(app, pilot, "Hi")
            await answered(app, pilot)
            await say(app, pilot, "/retry")
            await until(lambda: len(app.chat.conversation.replies) == 2)
            await answered(app, pilot)
            await say(app, pilot, "/clear")
            await until(lambda: "It runs on this computer" in screen(app))
            await say(app, pilot, "/model other")
            await until(lambda: app.chat.session.model == "other:latest")
            await say(app, pilot, "/help")
            await until(lambda: isinstance(app.screen, HelpScreen))
            await pilot.press("escape")
            await say(app, pilot, "/set")
            await until(lambda: isinstance(app.screen, SettingsScreen))
            await pilot.press("escape")
            await say(app, pilot, "/quit")
            await until(lambda: not app.is_running)

    with daemon(HELLO) as service:
        put("other")
        asyncio.run(use())
    assert len(service.requests) == 2


def test_what_is_no_command_says_so_and_is_not_asked(home: Path) -> None:
    async def use() -> None:
        async with chatting() as (app, pilot):
            for line, words in (
                ("/sett x", "did you mean /set?"),
                ("/set heat 3", "there is nothing named heat"),
                ("/set temperature warm", "temperature takes 0 or more"),
                ("/set top_k 9999999999999999999999", "top_k takes a whole number below"),
                ("/model nosuch", "no model named nosuch"),
                ("/model ../x", "is not a model name"),
                ("/help\nWhy is the sky blue?", "nothing can follow /help"),
                ("/new Why is the sky blue?", "nothing can follow /new"),
                ("/model m\nWhy?", "nothing can follow the line of /model"),
                ("/set temperature 1\n\nWhy?", "temperature cannot be"),
            ):
                app.chat.prompt.area.text = line
                await pilot.press("enter")
                await until(lambda words=words: words in told(app))  # type: ignore[misc]
                await until(lambda line=line: app.chat.prompt.text == line)  # type: ignore[misc] # to be mended
            app.chat.prompt.area.text = ""
            await ask(app, pilot, " /help")  # begins with a space
            await answered(app, pilot)

    with daemon(HELLO) as service:
        asyncio.run(use())
    assert len(service.requests) == 1


def test_settings_are_chosen_typed_refused_and_taken_back(home: Path) -> None:
    async def use() -> None:
        async with chatting() as (app, pilot):
            await pilot.press("f2")
            await until(lambda: isinstance(app.screen, SettingsScreen) and app.screen.highlighted == "preset")
            await pilot.press(*"temp")
            await until(lambda: isinstance(app.screen, SettingsScreen) and app.screen.highlighted == "temperature")
            await pilot.press("enter", *"hot", "enter")
            await until(lambda: "temperature cannot be 'hot'" in screen(app))
            assert app.chat.session.wishes == Wishes()
            await pilot.press(*["backspace"] * 3, *"0.5", "enter")
            await until(lambda: f"{'temperature':18}0.5  randomness" in screen(app))
            assert app.chat.session.wishes.sampling.temperature == 0.5
            await pilot.press(*"temp")
            await until(lambda: isinstance(app.screen, SettingsScreen) and app.screen.highlighted == "temperature")
            await pilot.press("delete")
            await until(lambda: app.chat.session.wishes == Wishes())
            await pilot.press("enter", "escape")  # out of the value, not out of the list
            await pilot.pause()
            assert isinstance(app.screen, SettingsScreen)
            await pilot.press("escape")
            await until(lambda: app.screen is app.chat)

    put("m")
    asyncio.run(use())


def test_wishes_set_each_of_the_table_and_nothing_else() -> None:
    values = {"preset": "code", "top_k": "7", "seed": "1", "max_tokens": "5", "stop": " # ", "system": " S "}
    texts = {name: values.get(name, "0.5") for name in SETTINGS}
    wishes = Wishes()
    for name, text in texts.items():
        wishes = wishes.changed(name, text)
    assert wishes.values() == {
        "preset": "code", "temperature": 0.5, "top_p": 0.5, "top_k": 7, "min_p": 0.5, "seed": 1, "max_tokens": 5,
        "repeat_penalty": 0.5, "presence_penalty": 0.5, "frequency_penalty": 0.5, "stop": "#", "system": "S",
    }  # fmt: skip
    request = wishes.upon(GenerateRequest(id="i", model="m", prompt=Text("t"), stop=("x",)))
    assert (request.max_tokens, request.preset, request.sampling, request.stop) == (
        5,
        "code",
        wishes.sampling,
        ("x", "#"),
    )
    for name in SETTINGS:
        wishes = wishes.changed(name, "default")
    assert wishes == Wishes()
    with pytest.raises(InvalidRequest, match="seed cannot be"):
        wishes.changed("seed", "-1")


def test_ctrl_d_in_an_empty_prompt_leaves(home: Path) -> None:
    async def use() -> None:
        async with chatting() as (app, pilot):
            app.chat.prompt.area.text = "abc"
            await pilot.press("home", "ctrl+d")
            await until(lambda: app.chat.prompt.text == "bc")
            assert app.is_running
            app.chat.prompt.area.text = ""
            await pilot.press("ctrl+d")
            await until(lambda: not app.is_running)

    with daemon(HELLO):
        asyncio.run(use())


def test_a_notice_lies_over_nothing_that_is_written(home: Path) -> None:
    async def use() -> None:
        async with chatting(size=(40, 16), notices=True) as (app, pilot):
            app.chat.prompt.area.text = "/nosuch"
            await pilot.press("enter")
            await until(lambda: app.chat.prompt.text == "/nosuch")
            await until(lambda: "there is no command" in screen(app))
            below = screen(app).splitlines()[-3:]
            assert below[0] == "─" * 40
            assert "/nosuch" in below[1]
            assert "f1 help" in below[2]  # also where there is room for few

    with daemon(HELLO):
        asyncio.run(use())


def test_what_the_keys_do_is_read_apart_from_them_on_a_narrow_screen(home: Path) -> None:
    async def use() -> None:
        async with chatting(size=(36, 24)) as (app, _):
            await until(lambda: "ctrl+n" in screen(app))
            lines = screen(app).splitlines()
            at = next(n for n, line in enumerate(lines) if "sends;" in line)
            column = lines[at].index("sends;")
            assert lines[at + 1].strip()
            assert lines[at + 1][:column].strip() == ""

    with daemon(HELLO):
        asyncio.run(use())
