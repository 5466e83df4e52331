"""Frames of one answer: its thoughts, then its text, on one screen."""

from __future__ import annotations

import os
from collections.abc import Sequence
from itertools import groupby
from typing import TextIO

from edgellm.cli.render.document import Document, Markdown, Plain
from edgellm.cli.render.markdown import parse
from edgellm.cli.render.screen import Screen
from edgellm.cli.render.styles import styles_for

_NARROWEST = 20  # columns; a terminal that claims fewer does not know its size


class Painter:
    """Draws what has come so far. `stream` is a terminal with escape sequences."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._styles = styles_for(stream)
        self._screen = Screen()
        self._kind = ""
        self._document: Document = Plain()
        parse([])  # imports the parser: a tenth of a second that the first text need not wait for

    def frame(self, pieces: Sequence[tuple[str, str]], *, last: bool, size: os.terminal_size) -> None:
        """Take more pieces (kind, text) and show them; after the `last` ones, if there were any, the line ends."""
        # The last column stays free: terminals differ in what a full line does.
        width = max(_NARROWEST, size.columns) - 1
        settled: list[str] = []
        for kind, group in groupby(pieces, key=lambda piece: piece[0]):
            settled += self._begin(kind, width) if kind != self._kind else []
            settled += self._document.feed("".join(text for _, text in group), width)
        settled += self._document.finish(width) if last else []
        opened = [] if last else self._document.open(width)
        written = self._screen.draw(settled, opened, width + 1, size.lines)
        self._stream.write(written + ("\n" if last and self._kind else ""))
        self._stream.flush()

    def _begin(self, kind: str, width: int) -> list[str]:
        """Another kind of text begins: finish the one before."""
        settled = [*self._document.finish(width), ""] if self._kind else []
        self._kind = kind
        if kind == "thought":
            self._document = Plain(self._styles.faint)
        else:
            self._document = Markdown(self._styles) if kind == "markdown" else Plain()
        return settled
