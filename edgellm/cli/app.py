"""`edgellm chat` and plain `edgellm`: the terminal app, found by entry point."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable

from edgellm import plugins
from edgellm.cli.terminal import is_terminal
from edgellm.errors import AppUnavailable

TERMINAL_APP = "tui"


def open_app(name: str | None) -> None:
    """Chat with the model of that name until the user leaves. Raises AppUnavailable where there is no terminal."""
    if not _has_screen():
        raise AppUnavailable(
            "the chat needs a terminal, for what it shows and for what is typed",
            hint='`edgellm run NAME "…"` answers anywhere, also in pipes',
        )
    plugins.app(TERMINAL_APP)(name)


def open_app_or(otherwise: Callable[[], None]) -> None:
    """The app where it can run; else `otherwise`."""
    if _has_screen() and TERMINAL_APP in plugins.app_names():
        open_app(None)
    else:
        otherwise()


def _has_screen() -> bool:
    return is_terminal(sys.stdin) and is_terminal(sys.stdout) and os.environ.get("TERM") != "dumb"
