"""AnswerStream: the events of one request, between the worker's frames and one reader. Ends exactly once."""

from __future__ import annotations

import asyncio
from collections import deque

from edgellm.contracts.events import Event, Failed, Finished, Progress, Started
from edgellm.engine.deltas import Delta, joined
from edgellm.engine.protocol import Request
from edgellm.errors import EdgeError

# Text a lagging reader has not taken is joined into pieces of about this size: fewer events, no quadratic copying.
_JOIN_BYTES = 4096


class AnswerStream:
    """A buffer for one reader that never blocks the writer.

    request   as the worker knows it
    sent      the worker has been given the request
    started   the worker has begun with it
    ended     the last event is in; nothing more will be taken
    """

    def __init__(self, request: Request, limit_bytes: int) -> None:
        self.request = request
        self.sent = False
        self.started = False
        self.ended = False
        self._limit = limit_bytes
        self._size = 0  # bytes of text not yet read
        self._events: deque[Event] = deque()
        self._reader: asyncio.Future[None] | None = None

    def put(self, event: Event) -> bool:
        """Add an event; nothing once the stream has ended. False: more text is unread than the limit allows."""
        if self.ended:
            return True
        if isinstance(event, Delta):
            self._size += len(event.text.encode())
            if self._size > self._limit:
                return False
        elif isinstance(event, Started):
            self.started = True
        elif isinstance(event, Finished | Failed):
            self.ended = True
        self._append(event)
        self._wake()
        return True

    def fail(self, error: EdgeError, *, drop: bool = False) -> None:
        """End with `error`, unless already ended. `drop`: what was not read yet is forgotten."""
        if drop and not self.ended:
            self._events.clear()
        self.put(Failed(error.info))

    async def next(self) -> Event:
        """The next event, waited for. One reader only; not to be called after the last event."""
        while not self._events:
            self._reader = asyncio.get_running_loop().create_future()
            await self._reader
        event = self._events.popleft()
        if isinstance(event, Delta):
            self._size -= len(event.text.encode())
        return event

    def _append(self, event: Event) -> None:
        last = self._events[-1] if self._events else None
        if isinstance(event, Progress) and isinstance(last, Progress) and event.stage == last.stage:
            self._events[-1] = event  # only the newest counts
        elif isinstance(last, Delta) and len(last.text) < _JOIN_BYTES and (one := joined(last, event)):
            self._events[-1] = one
        else:
            self._events.append(event)

    def _wake(self) -> None:
        if self._reader is not None and not self._reader.done():
            self._reader.set_result(None)
