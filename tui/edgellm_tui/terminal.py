"""What comes from the terminal: bytes that are no text, and pastes that hold anything, end and trigger nothing.

Textual's own input thread ends at the first byte that is no UTF-8, and then no key does anything any more. Its parser
looks for keys inside of a paste, and so a pasted escape sequence sends what stands before it.
"""

from __future__ import annotations

import os
import selectors
from codecs import getincrementaldecoder
from collections.abc import Iterable

from textual import events
from textual._parser import ParseError
from textual._xterm_parser import XTermParser
from textual.drivers.linux_driver import LinuxDriver
from textual.message import Message

_START, _END = "\x1b[200~", "\x1b[201~"  # bracketed paste (xterm)
_CUT = len(_END) - 1  # characters of a mark that may be all that has come of it
_READ = 1 << 16  # bytes at once


class Keys(XTermParser):
    """Takes pastes out whole; the rest is keys, mouse and reports, as ever."""

    def __init__(self) -> None:
        super().__init__()
        self._paste: list[str] | None = None  # as far as it has come; its last part may hold a mark's beginning

    def feed(self, data: str) -> Iterable[Message]:
        while data:
            if self._paste is None:
                # A mark that is cut in two is left to the parent, with its paste: none is held back here, for an
                # escape at the end is more often the key.
                keys, begun, data = data.partition(_START)
                if keys:
                    yield from super().feed(keys)
                if begun:
                    self._paste = [""]
                continue
            last, ended, rest = (self._paste.pop() + data).partition(_END)
            if not ended:
                self._paste += (last[:-_CUT], last[-_CUT:])
                return
            pasted, data, self._paste = "".join([*self._paste, last]), rest, None
            yield events.Paste(pasted.replace("\x00", ""))

    def end(self) -> None:
        """Nothing more comes."""
        try:
            for _ in super().feed(""):
                pass
        except (EOFError, ParseError):
            pass


class TerminalDriver(LinuxDriver):
    """Textual's driver for POSIX terminals, with a thread for input that outlives what it reads."""

    def run_input_thread(self) -> None:
        """Read until the app ends."""
        keys = Keys()
        decode = getincrementaldecoder("utf-8")("replace").decode
        with selectors.SelectSelector() as selector:
            selector.register(self.fileno, selectors.EVENT_READ)
            while not self.exit_event.is_set():
                if selector.select(0.1):
                    data = os.read(self.fileno, _READ)
                    if not data:  # the terminal has gone
                        self.exit_event.wait(0.1)
                    for message in keys.feed(decode(data)):
                        self.process_message(message)
                for message in keys.tick():
                    self.process_message(message)
        keys.end()
