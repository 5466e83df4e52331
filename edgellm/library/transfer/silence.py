"""How long a server has sent nothing, as far as this process was there to hear it.

A command that was stopped (Ctrl+Z) or slept with its machine finds its connection broken and the clock advanced. The
time between two signs of the network counts no more than a try and the wait before it can take.
"""

from __future__ import annotations

import time


class Silence:
    """Signs are bytes and tries that failed. Not locked."""

    def __init__(self, longest_s: float) -> None:
        """`longest_s`: what a wait and a try can take together."""
        self._longest_s = longest_s
        self._seconds = 0.0
        self._last = time.monotonic()

    def broken(self) -> None:
        """A byte came."""
        self._seconds, self._last = 0.0, time.monotonic()

    def failed(self) -> float:
        """A try failed: seconds of silence so far."""
        now = time.monotonic()
        self._seconds += max(0.0, min(now - self._last, self._longest_s))
        self._last = max(now, self._last)
        return self._seconds

    def excuse(self, seconds: float) -> None:
        """The next `seconds` do not count: the server asked for them."""
        self._last = max(self._last, time.monotonic() + seconds)
