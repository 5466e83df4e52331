"""What begins with a slash in the prompt: the keys' actions by name, and settings."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

import msgspec

from edgellm.wishes import wanted

if TYPE_CHECKING:
    from edgellm_tui.app import ChatApp

Action = Callable[["ChatApp", str], Awaitable[None] | None]


class Command(msgspec.Struct, frozen=True):
    usage: str
    meaning: str
    run: Action  # with what follows the name


def _set(app: ChatApp, rest: str) -> None:
    if not rest:
        app.action_settings()
        return
    name, text = wanted(rest)
    app.wish(app.chat.session.wishes.changed(name, text))
    value = app.chat.session.wishes.values()[name]
    app.notify(f"{name} is {'as recommended again' if value is None else value}", timeout=3, markup=False)


async def _model(app: ChatApp, rest: str) -> None:
    if rest:
        await app.use(rest)
    else:
        app.action_models()


COMMANDS: dict[str, Command] = {
    "/new": Command("/new", "a new conversation", lambda app, _: app.chat.action_new()),
    "/model": Command("/model [NAME]", "another model", _model),
    "/history": Command("/history", "an earlier conversation", lambda app, _: app.action_resume()),
    "/set": Command("/set [NAME VALUE]", "how answers are made: temperature, system, …", _set),
    "/retry": Command("/retry", "answer the last question again", lambda app, _: app.chat.action_retry()),
    "/copy": Command("/copy", "copy the last answer", lambda app, _: app.chat.action_copy_answer()),
    "/help": Command("/help", "all keys and commands", lambda app, _: app.action_help()),
    "/bye": Command("/bye", "leave; all is kept", lambda app, _: app.exit()),
}
ALIASES = {"/?": "/help", "/clear": "/new", "/exit": "/bye", "/quit": "/bye", "/models": "/model"}
