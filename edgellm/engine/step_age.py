"""How long a step has run, as far as the process ran at all.

A laptop sleeps, a container is paused, and on some systems the clock goes on meanwhile: a step that lay still with
everything else has not hung. So the age is counted from beat to beat, and a beat that comes late counts as one.
"""

from __future__ import annotations

from edgellm.engine.protocol import HEARTBEAT_S

_MOST_S = 2 * HEARTBEAT_S  # between two beats of a process that runs


class StepAge:
    """Asked once with each heartbeat, by one thread."""

    def __init__(self, now: float) -> None:
        self._last = now
        self._started = 0.0
        self._age = 0.0

    def at(self, started: float, now: float) -> float:
        """Seconds since `started`, on the same clock as `now`; 0 where that is 0: no step runs."""
        passed = min(now - self._last, _MOST_S)
        self._last = now
        if not started:
            self._age = 0.0
        elif started != self._started:
            self._age = min(now - started, passed)
        else:
            self._age += passed
        self._started = started
        return self._age
