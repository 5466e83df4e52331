"""What begins with a slash in the prompt: the keys' actions by name, and settings."""

from __future__ import annotations

import difflib
import re
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

import msgspec

from edgellm.errors import InvalidRequest

if TYPE_CHECKING:
    from edgellm_tui.app import ChatApp

_NAME = re.compile(r"/[a-z?]*\Z")
Action = Callable[["ChatApp", str], Awaitable[None] | None]


class Command(msgspec.Struct, frozen=True):
    usage: str
    meaning: str
    run: Action  # with what follows the name


def command_in(text: str) -> tuple[str, str] | None:
    """Name and rest, where a message is a command; a path, or one that begins with a space, is none."""
    if not text.startswith("/"):
        return None
    name, _, rest = text.strip().partition(" ")
    return (name, rest.strip()) if _NAME.match(name) else None


def found(name: str) -> Command:
    """The command of that name or alias. Raises InvalidRequest with the nearest one."""
    command = COMMANDS.get(ALIASES.get(name, name))
    if command is None:
        near = difflib.get_close_matches(name, [*COMMANDS, *ALIASES], n=1)
        hint = f"did you mean {near[0]}? " if near else ""
        raise InvalidRequest(
            f"there is no command {name}", hint=f"{hint}/help lists all; a space before it makes it a question"
        )
    return command


def _set(app: ChatApp, rest: str) -> None:
    name, _, text = rest.removeprefix("parameter ").strip().partition(" ")  # as others write it
    if not name:
        app.action_settings()
        return
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
