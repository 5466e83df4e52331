"""`edgellm chat` and plain `edgellm`: the terminal app, found by entry point."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable

from edgellm import plugins
from edgellm.cli.output import Output
from edgellm.cli.terminal import is_terminal
from edgellm.errors import AppUnavailable

TERMINAL_APP = "tui"
ELSEWHERE = '`edgellm run NAME "…"` answers anywhere, also in pipes'


def open_app(name: str | None) -> None:
    """Chat with the model of that name until the user leaves. Raises AppUnavailable where there is no terminal."""
    missing = _missing()
    if missing:
        raise AppUnavailable(f"the chat {missing}", hint=ELSEWHERE)
    plugins.app(TERMINAL_APP)(name)


def open_app_or(otherwise: Callable[[], None]) -> None:
    """The app where it can run; else `otherwise`, and on a terminal why there is none. In pipes nobody expects it."""
    missing = _missing()
    if not missing and TERMINAL_APP in plugins.app_names():
        open_app(None)
        return
    otherwise()
    if missing and is_terminal(sys.stdin) and is_terminal(sys.stdout):
        Output().note(f"\nno chat here: it {missing}; {ELSEWHERE}")


def _missing() -> str:
    """What the chat lacks here, in words; empty where it can run."""
    if not (is_terminal(sys.stdin) and is_terminal(sys.stdout)):
        return "needs a terminal, for what it shows and for what is typed"
    if os.environ.get("TERM") == "dumb":
        return "needs a terminal that can be drawn on, and TERM=dumb says that this one cannot"
    return ""
