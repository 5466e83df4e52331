"""A terminal in memory: what a person sees of what was written, scrolled away lines included."""

from __future__ import annotations

import codecs
import fcntl
import io
import os
import pty
import select
import struct
import subprocess
import termios
import time
from collections.abc import Callable, Mapping, Sequence

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

    def __init__(self, columns: int, lines: int, *, driver: bool = False) -> None:
        """`driver`: a terminal's driver translates line feeds already."""
        self.size = os.terminal_size((columns, lines))
        self._screen = pyte.HistoryScreen(columns, lines, history=100_000)
        if not driver:
            self._screen.set_mode(pyte.modes.LNM)
        self._stream = pyte.Stream(self._screen)

    def feed(self, text: str) -> None:
        # pyte stops at characters without width that do not combine.
        self._stream.feed(text.replace("\u200d", ""))

    def answers_to(self, send: Callable[[str], None]) -> None:
        """Where its own reports go: the cursor's place, to a program that asks."""
        self._screen.write_process_input = send  # type: ignore[method-assign, assignment]

    def line(self) -> str:
        """The line with the cursor."""
        return str(self._screen.display[self._screen.cursor.y])

    def text(self) -> list[str]:
        """All lines from the first one written, without spaces at their ends, and without empty ones at the end."""
        columns = self._screen.columns
        gone = ["".join(row[at].data for at in range(columns)) for row in self._screen.history.top]
        lines = [line.rstrip() for line in (*gone, *self._screen.display)]
        while lines and not lines[-1]:
            lines.pop()
        return lines


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


class Session:
    """A program in a terminal of its own: what is typed goes to it, what it writes is shown."""

    def __init__(self, argv: Sequence[str], terminal: Terminal, environment: Mapping[str, str]) -> None:
        self.terminal = terminal
        self.written = ""
        columns, lines = terminal.size
        self._master, slave = pty.openpty()
        self._resize(slave, columns, lines)
        self.process = subprocess.Popen(
            argv,
            stdin=slave,
            stdout=slave,
            stderr=slave,
            env={**os.environ, "TERM": "xterm", **environment},
            start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
        )
        os.close(slave)
        terminal.answers_to(self.type)
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def type(self, text: str) -> None:
        self.send(text.encode())

    def send(self, data: bytes) -> None:
        """What need not be text."""
        os.write(self._master, data)

    def read(self, seconds: float) -> bool:
        """Take what it writes for at most so long; False at its end."""
        if not select.select([self._master], [], [], seconds)[0]:
            return True
        try:
            data = os.read(self._master, 65536)
        except OSError:  # nobody has the other end any more
            return False
        text = self._decoder.decode(data)
        self.written += text
        self.terminal.feed(text)
        return bool(data)

    def wait_for(self, words: str, seconds: float = 20.0) -> None:
        """Read until these words stand on the screen."""
        self._until(lambda: words in "\n".join(self.terminal.text()), words, seconds)

    def wait_for_prompt(self, seconds: float = 20.0) -> None:
        """Read until it waits for a message."""
        self._until(lambda: self.terminal.line().startswith(">"), "a prompt", seconds)

    def end(self, seconds: float = 20.0) -> int:
        """Its exit code, once it has ended."""
        deadline = time.monotonic() + seconds
        while self.read(0.05):
            assert time.monotonic() < deadline, "it does not end:\n" + "\n".join(self.terminal.text())
        return self.process.wait(seconds)

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        os.close(self._master)

    def _until(self, condition: Callable[[], bool], words: str, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while not condition():
            assert time.monotonic() < deadline, f"no {words!r} on the screen:\n" + "\n".join(self.terminal.text())
            assert self.read(0.05) or condition(), f"it ended without {words!r}:\n" + "\n".join(self.terminal.text())

    @staticmethod
    def _resize(descriptor: int, columns: int, lines: int) -> None:
        fcntl.ioctl(descriptor, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))
