"""How often text leaves the worker. Every frame wakes the daemon, every delta the client, on cores that the next step
wants; a reader cannot tell thirty updates a second from a hundred.
"""

from __future__ import annotations

from edgellm.contracts.events import Event, Failed, Finished
from edgellm.engine.deltas import Delta, joined

Emission = tuple[str, Event]  # request id, event
INTERVAL_S = 0.03


class Pacer:
    """Holds text back for at most `interval_s`, joined per answer; a first text and every other event go at once."""

    def __init__(self, interval_s: float = INTERVAL_S) -> None:
        self._interval_s = interval_s
        self._held: list[Emission] = []
        self._started: set[str] = set()  # answers whose first text has gone
        self._sent_at = 0.0

    def add(self, events: list[Emission], now: float, next_s: float) -> list[Emission]:
        """Take a step's events; returns what to send now. The next step is expected to take `next_s` seconds."""
        urgent = False
        for request_id, event in events:
            if isinstance(event, Delta):
                urgent |= request_id not in self._started
                self._started.add(request_id)
            else:
                urgent = True
                if isinstance(event, Finished | Failed):
                    self._started.discard(request_id)
        self._held.extend(events)
        if urgent or now + next_s - self._sent_at >= self._interval_s:
            return self.flush(now)
        return []

    def forget(self, request_id: str) -> None:
        """The request was cancelled: nothing more of it is sent."""
        self._started.discard(request_id)
        self._held = [emission for emission in self._held if emission[0] != request_id]

    def flush(self, now: float) -> list[Emission]:
        """Everything held, texts of one answer joined, order kept."""
        if self._held:
            self._sent_at = now
        held, self._held = self._held, []
        return _joined(held)


def _joined(events: list[Emission]) -> list[Emission]:
    out: list[Emission] = []
    last: dict[tuple[str, int], int] = {}  # where a choice's latest text stands in `out`
    for request_id, event in events:
        if not isinstance(event, Delta):
            for key in [key for key in last if key[0] == request_id]:
                del last[key]
            out.append((request_id, event))
            continue
        key = (request_id, event.choice)
        at = last.get(key)
        one = None if at is None else joined(out[at][1], event)
        if at is None or one is None:
            last[key] = len(out)
            out.append((request_id, event))
        else:
            out[at] = (request_id, one)
    return out
