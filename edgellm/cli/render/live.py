"""An answer on stdout as it comes: rendered on a terminal, inert text on one that cannot redraw, exact in a pipe."""

from __future__ import annotations

import shutil
import sys
import threading
import time
from typing import Literal, Protocol, TextIO

from edgellm.cli.output import Output
from edgellm.cli.terminal import has_escapes, is_terminal
from edgellm.inert import inert

_FRAME_S = 0.04  # between two frames; and never more than half of the time is spent on drawing
Kind = Literal["thought", "markdown", "plain"]


class Answer(Protocol):
    def write(self, text: str) -> None:
        """The next piece of the answer."""
        ...

    def think(self, text: str) -> None:
        """The next piece of the thoughts before it, which are no data."""
        ...

    def end(self) -> None:
        """No more comes. Where anything was written, the cursor then stands at the beginning of a line."""
        ...


def answer_to(output: Output, *, markdown: bool) -> Answer:
    """Where an answer goes: as rendered markdown, where that is what it holds and stdout can show it."""
    if not is_terminal(sys.stdout):
        return Exact()
    if not has_escapes(sys.stdout):
        return Inert(output)
    return Live(output, sys.stdout, markdown=markdown)


class Exact:
    """Data for another program: every byte as it was generated, and a line break at the end if there is none."""

    def __init__(self) -> None:
        self._last = "\n"

    def write(self, text: str) -> None:
        if text:
            self._last = text[-1]
            sys.stdout.write(text)
            sys.stdout.flush()

    def think(self, text: str) -> None:
        del text

    def end(self) -> None:
        if self._last != "\n":
            sys.stdout.write("\n")
            sys.stdout.flush()


class Inert:
    """A terminal that only prints."""

    def __init__(self, output: Output) -> None:
        self._output = output
        self._held = ""  # line breaks that may turn out to be the last
        self._thinking = False
        self._begun = False

    def write(self, text: str) -> None:
        if self._thinking and text.strip():
            self._thinking, self._held = False, "\n\n"
        self._print(text)

    def think(self, text: str) -> None:
        self._thinking = True
        self._print(text)

    def end(self) -> None:
        if self._begun:
            sys.stdout.write("\n")
            sys.stdout.flush()

    def _print(self, text: str) -> None:
        text = self._held + text
        body = text.rstrip("\n")
        self._held = text[len(body) :]
        if body:
            self._begun = True
            self._output.clear_status()
            sys.stdout.write(inert(body))
            sys.stdout.flush()


class Live:
    """A terminal that can redraw.

    A thread of its own draws, so that the stream is never kept waiting. It begins with what it needs to import, while
    the model reads the prompt.
    """

    def __init__(self, output: Output, stream: TextIO, *, markdown: bool) -> None:
        self._output = output
        self._stream = stream
        self._kind: Kind = "markdown" if markdown else "plain"
        self._change = threading.Condition()
        self._pending: list[tuple[Kind, str]] = []
        self._over = False
        self._failure: Exception | None = None
        self._begun = False
        self._thread = threading.Thread(target=self._paint, name="paint", daemon=True)
        self._thread.start()

    def write(self, text: str) -> None:
        self._add(self._kind, text)

    def think(self, text: str) -> None:
        self._add("thought", text)

    def end(self) -> None:
        with self._change:
            self._over = True
            self._change.notify()
        self._thread.join()
        if self._failure is not None:
            raise self._failure

    def _add(self, kind: Kind, text: str) -> None:
        if self._failure is not None:
            raise self._failure
        if not self._begun:
            self._output.clear_status()
            self._begun = True
        with self._change:
            self._pending.append((kind, text))
            self._change.notify()

    def _paint(self) -> None:
        from edgellm.cli.render.painter import Painter

        try:
            painter = Painter(self._stream)
            over = False
            while not over:
                with self._change:
                    self._change.wait_for(lambda: self._pending or self._over)
                    pieces, self._pending, over = self._pending, [], self._over
                began = time.monotonic()
                painter.frame(pieces, last=over, size=shutil.get_terminal_size())
                spent = time.monotonic() - began
                with self._change:
                    self._change.wait_for(lambda: self._over, timeout=max(_FRAME_S - spent, spent))
        except Exception as error:  # raised where the answer is written: a terminal that has gone
            self._failure = error
