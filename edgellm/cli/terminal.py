"""What is possible on a terminal: colour, width, encoding."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path
from typing import TextIO


class PipeClosed(Exception):
    """The reader of stdout has gone (`| head`)."""


def is_terminal(stream: TextIO | None) -> bool:
    """Whether a person sees this stream; a missing or closed one is seen by nobody."""
    try:
        return stream is not None and stream.isatty()
    except ValueError:
        return False


def has_colour(stream: TextIO) -> bool:
    """Whether colour may be used: a terminal that speaks escape sequences, and no NO_COLOR (no-color.org)."""
    return not os.environ.get("NO_COLOR") and has_escapes(stream)


def has_escapes(stream: TextIO) -> bool:
    """Whether this is a terminal that speaks escape sequences."""
    environment = os.environ
    if environment.get("TERM") == "dumb":
        return False
    # The old Windows console has neither variable, and would print the sequences.
    return is_terminal(stream) and bool(environment.get("TERM") or environment.get("WT_SESSION"))


def width() -> int:
    """Columns to write in; 80 where nobody knows."""
    return max(20, shutil.get_terminal_size((80, 24)).columns)


def encodes(stream: TextIO, text: str) -> bool:
    """Whether the stream's encoding has these characters."""
    try:
        text.encode(stream.encoding or "ascii")
    except (UnicodeEncodeError, LookupError):
        return False
    return True


def prepare_streams() -> None:
    """No character may break the output: pipes carry UTF-8, and what a console lacks becomes a question mark.

    A stream that the shell has closed (`>&-`) becomes one to nowhere; the next file to be opened would get its number.
    """
    for name in ("stdin", "stdout", "stderr"):  # in the order of their numbers
        if getattr(sys, name) is None:
            setattr(sys, name, Path(os.devnull).open("r" if name == "stdin" else "w"))  # noqa: SIM115
    for stream in (sys.stdout, sys.stderr):
        reconfigure = getattr(stream, "reconfigure", None)
        if reconfigure is None:  # replaced by a test or an embedding program
            continue
        if is_terminal(stream):
            reconfigure(errors="replace")
        else:
            reconfigure(encoding="utf-8", errors="replace")
