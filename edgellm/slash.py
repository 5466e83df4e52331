"""Commands that begin with a slash: told from text, and found."""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from typing import TypeVar

from edgellm.errors import InvalidRequest

_NAME = re.compile(r"/[a-z?]*\Z")
T = TypeVar("T")


def split(text: str) -> tuple[str, str] | None:
    """Name and rest, where a message is a command; a path, or one that begins with a space, is none."""
    if not text.startswith("/"):
        return None
    name, *rest = text.split(maxsplit=1)
    return (name, "".join(rest).strip()) if _NAME.match(name) else None


def find(name: str, commands: Mapping[str, T], aliases: Mapping[str, str]) -> T:
    """The command of that name or alias. Raises InvalidRequest with the nearest one."""
    command = commands.get(aliases.get(name, name))
    if command is None:
        near = difflib.get_close_matches(name, [*commands, *aliases], n=1)
        hint = f"did you mean {near[0]}? " if near else ""
        raise InvalidRequest(
            f"there is no command {name}", hint=f"{hint}/help lists all; a space before it makes it a question"
        )
    return command


def require_fitting(name: str, rest: str, usage: str, meaning: str) -> None:
    """What follows the name is something that `usage` has a place for; only a VALUE may have several lines.

    Raises InvalidRequest: what a command would drop was meant for somebody.
    """
    takes = usage.partition(" ")[2]
    if not rest or "VALUE" in takes or (takes and "\n" not in rest):
        return
    raise InvalidRequest(
        f"nothing can follow the line of {name}" if takes else f"nothing can follow {name}",
        hint=f"{usage} alone: {meaning}; a space before the command makes all of it a question",
    )
