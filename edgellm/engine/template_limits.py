"""What a chat template may spend: time, memory, and the size of any one value.

A template comes with a model file, so it is a stranger's program. The limits are kept by the program itself, which the
sandbox compiles with a check in every loop turn, call, filter and operator. That is better than a timer that stops the
thread from outside: an exception injected into a thread arrives late while C code runs (`'a' * 10**9` is one bytecode),
may land in the caller's cleanup, and behaves differently under load; a check in the loop stops at a known place, on
every platform, in whatever thread. It works because no single operation is long: values are bounded before they are
made.

Invariant: every container a template can reach has been weighed, shared parts counted as often as they occur, so that
comparing, printing or hashing one (`[x, x]` nested forty times) is bounded too.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Iterator, MappingView
from typing import Any, cast

from jinja2.runtime import LoopContext

INT_BITS = 1024  # longest integer; more than any float
_CONTAINER_BYTES = 256  # charged for each container beside its slots: itself and its place in the ledger
_SLOT_BYTES = 16
_PLAIN = frozenset({bool, int, float, type(None), list, tuple, dict})


class TemplateLimit(Exception):
    """The template spent more than it may, or tried something it must not."""


class TemplateRefusal(Exception):
    """The template itself called `raise_exception`; the message is its own."""


class Meter:
    """The limits of one rendering; used by one thread.

    size        most characters (items of containers count as one each) in one value, and in the output
    allowance   most bytes made over the whole rendering, freed or not: a bound on memory that needs no book-keeping
    seconds     CPU time of this thread. Wall time is looked at first because it is cheap; but a machine that is busy
                or was asleep must not make a good template fail
    """

    def __init__(self, size: int, allowance: int, seconds: float) -> None:
        self.size = size
        self._allowance = self._left = allowance
        self._seconds = seconds
        self._started = time.thread_time()
        self._deadline = time.monotonic() + seconds
        self._weights: dict[int, tuple[object, int]] = {}  # the object is kept, so that its id stays its own

    def tick(self) -> None:
        """Raise TemplateLimit when time is up."""
        if time.monotonic() > self._deadline:
            used = time.thread_time() - self._started
            if used >= self._seconds:
                raise TemplateLimit(f"it ran for more than {self._seconds:g} s")
            self._deadline = time.monotonic() + self._seconds - used

    def fits(self, size: int) -> None:
        """Raise TemplateLimit when a value of `size` characters or items would be too large."""
        if size > self.size:
            raise TemplateLimit(f"a value would grow past {self.size:,} characters")

    def made(self, value: Any) -> Any:
        """Account for a value the template has just made; iterators come back as lists."""
        self.tick()
        kind = type(value)
        if isinstance(value, str):
            if kind is not str:
                value = str.__str__(value)  # Markup, whose `+` and `%` escape
            self._charge(sys.getsizeof(value))
        elif kind not in _PLAIN and isinstance(value, (Iterator, MappingView)) and kind is not LoopContext:
            value = self._listed(cast("Iterable[Any]", value))
        self.weight(value)
        return value

    def text(self, value: object) -> str:
        """`str(value)`, bounded."""
        self.weight(value)
        text = value if type(value) is str else str.__str__(str(value))
        self.fits(len(text))
        return text

    def joined(self, parts: Iterable[str]) -> str:
        """The parts as one string, bounded before it is built."""
        kept: list[str] = []
        length = 0
        for part in parts:
            self.tick()
            length += len(part)
            self.fits(length)
            kept.append(part)
        text: str = self.made("".join(kept))
        return text

    def weight(self, value: object) -> int:
        """Characters and items in `value` when written out. Raises TemplateLimit when that is too much."""
        if isinstance(value, str):
            weight = len(value) + 1
        elif isinstance(value, (list, tuple, dict)):
            known = self._weights.get(id(value))
            return known[1] if known else self._weigh(value)
        elif isinstance(value, range):
            weight = len(value)
        else:
            if isinstance(value, int) and value.bit_length() > INT_BITS:
                raise TemplateLimit(f"a number would grow past {INT_BITS} bits")
            return 1
        self.fits(weight - 1)
        return weight

    def forget(self) -> None:
        """Let go of the values, when the rendering is over."""
        self._weights.clear()

    def _weigh(self, value: list[Any] | tuple[Any, ...] | dict[Any, Any]) -> int:
        self.fits(len(value))
        self._charge(_CONTAINER_BYTES + _SLOT_BYTES * len(value))
        weight = 1 + sum(map(self.weight, value))
        if isinstance(value, dict):
            weight += sum(map(self.weight, value.values()))
        self.fits(weight)
        self._weights[id(value)] = (value, weight)
        return weight

    def _listed(self, values: Iterable[Any]) -> list[Any]:
        out: list[Any] = []
        for value in values:
            self.tick()
            self.fits(len(out))
            out.append(value)
        return out

    def _charge(self, size: int) -> None:
        self._left -= size
        if self._left < 0:
            raise TemplateLimit(f"it used more than {self._allowance >> 20} MiB of memory")
