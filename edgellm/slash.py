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
