"""Which model was last talked to, by a person: that one the chat opens with. Programs' requests do not count."""

from __future__ import annotations

import contextlib

from edgellm import platform
from edgellm.paths import Paths
from edgellm.small_files import open_regular

_LONGEST = 1000  # characters of a name, and more


def remember(paths: Paths, name: str) -> None:
    """The model of that full name is talked to now. One that cannot be kept is forgotten."""
    with contextlib.suppress(OSError):
        if latest(paths) != name:
            platform.make_private_folder(paths.data)
            platform.write_private(paths.last_chat, name.encode())


def latest(paths: Paths) -> str | None:
    """Its full name; None where none is known."""
    with contextlib.suppress(OSError), open_regular(paths.last_chat) as file:
        return file.read(_LONGEST).decode(errors="replace").strip() or None
    return None
