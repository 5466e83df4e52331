"""How patient the daemon is with a worker, and with one that dies again and again. Pure."""

from __future__ import annotations

import msgspec


class Supervision(msgspec.Struct, frozen=True, kw_only=True):
    """How patient the daemon is with a worker. Seconds, but for counts and bytes."""

    heartbeat_timeout_s: float = 10.0  # silence after which a worker is killed
    hello_timeout_s: float = 60.0  # the same before it loads: Python and an engine may come from a slow disk
    load_stall_s: float = 300.0  # loading without progress
    step_floor_s: float = 60.0  # a step may take this long, or …
    step_factor: float = 10.0  # … so many times its prediction
    backoff_s: float = 0.5  # before the second restart in a row; doubles from there
    backoff_limit_s: float = 30.0
    deaths: int = 5  # in a row, with neither an answer nor a while of service between: give up
    settled_s: float = 60.0  # that while
    cooldown_s: float = 30.0  # after giving up, before a request may try again
    polite_s: float = 2.0  # for a worker to exit by itself
    grace_s: float = 10.0  # for running answers when the model is stopped
    unread_bytes: int = 1024 * 1024  # of text a reader may leave waiting


class Restarts:
    """Counts deaths in a row: since the last answer, or since the last worker that served for a while."""

    def __init__(self, limits: Supervision) -> None:
        self.deaths = 0
        self._limits = limits

    def answered(self) -> None:
        """A request was answered in full."""
        self.deaths = 0

    def died(self, service_s: float) -> float | None:
        """Seconds to wait before the next start after a death, or None: no next start.

        At once after the first, then doubling. `service_s`: how long the dead one had been ready.
        """
        self.deaths = 1 if service_s >= self._limits.settled_s else self.deaths + 1
        if self.deaths >= self._limits.deaths:
            return None
        if self.deaths == 1:
            return 0.0
        return min(self._limits.backoff_limit_s, self._limits.backoff_s * 2.0 ** (self.deaths - 2))
