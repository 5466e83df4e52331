"""A terminal in memory: what a person sees of what was written, scrolled away lines included."""

from __future__ import annotations

import io
import os
from collections.abc import Sequence

import pyte

from edgellm.cli.render.painter import Painter


class Tty(io.StringIO):
    """A stream that says it is a terminal, in UTF-8."""

    encoding = "utf-8"

    def isatty(self) -> bool:
        return True

    def take(self) -> str:
        """What was written since the last call."""
        text = self.getvalue()
        self.seek(0)
        self.truncate()
        return text


class Terminal:
    """Shows what is fed to it; a line feed also returns to the left, as terminals' drivers have it."""

    def __init__(self, columns: int, lines: int) -> None:
        self.size = os.terminal_size((columns, lines))
        self._screen = pyte.HistoryScreen(columns, lines, history=100_000)
        self._screen.set_mode(pyte.modes.LNM)
        self._stream = pyte.Stream(self._screen)

    def feed(self, text: str) -> None:
        # pyte stops at characters without width that do not combine.
        self._stream.feed(text.replace("\u200d", ""))

    def text(self) -> list[str]:
        """All lines from the first one written, without spaces at their ends, and without empty ones at the end."""
        columns = self._screen.columns
        gone = ["".join(row[at].data for at in range(columns)) for row in self._screen.history.top]
        lines = [line.rstrip() for line in (*gone, *self._screen.display)]
        while lines and not lines[-1]:
            lines.pop()
        return lines

    def styles(self, row: int) -> set[tuple[bool, bool, str]]:
        """(bold, italics, colour) of the characters in one row of the screen."""
        cells = self._screen.buffer[row]
        return {(cell.bold, cell.italics, cell.fg) for cell in cells.values() if cell.data.strip()}


def painted(pieces: Sequence[str], terminal: Terminal, kind: str = "markdown") -> list[str]:
    """Paint an answer piece by piece; what was written for each frame."""
    tty = Tty()
    painter = Painter(tty)
    frames = []
    for at, piece in enumerate(pieces):
        painter.frame([(kind, piece)], last=at == len(pieces) - 1, size=terminal.size)
        frames.append(tty.take())
        terminal.feed(frames[-1])
    return frames
