"""OpenRequests: the requests of one model whose readers have not got everything yet.

Each waits first, until `send` gives it to the worker. Its stream ends with what the worker says, or with an error from
this side, and is forgotten when its reader is gone.
"""

from __future__ import annotations

import asyncio
import itertools
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import msgspec

from edgellm.contracts.events import Event, Progress
from edgellm.engine.process import WorkerProcess
from edgellm.engine.protocol import Cancel, Request, asking
from edgellm.engine.stream import AnswerStream
from edgellm.errors import EdgeError, RequestTimeout


class OpenRequests:
    """To be used from one event loop.

    none   set while no request is open
    """

    def __init__(self, unread_bytes: int) -> None:
        """`unread_bytes`: text that a reader may leave waiting."""
        self.none = asyncio.Event()
        self.none.set()
        self._unread_bytes = unread_bytes
        self._numbers = itertools.count(1)
        self._streams: dict[str, AnswerStream] = {}
        self._unsent: deque[AnswerStream] = deque()
        self._worker: WorkerProcess | None = None  # that has been given requests

    def __len__(self) -> int:
        return len(self._streams)

    @property
    def unsent(self) -> int:
        """How many no worker has been given yet."""
        return len(self._unsent)

    @property
    def running(self) -> int:
        """How many a worker has begun with."""
        return sum(1 for stream in self._streams.values() if stream.started and not stream.ended)

    @property
    def waiting(self) -> int:
        """How many nobody has begun with."""
        return sum(1 for stream in self._streams.values() if not stream.started and not stream.ended)

    @contextmanager
    def opened(self, request: Request) -> Iterator[AnswerStream]:
        """A stream for a request, with its time limit; when its reader leaves early, the worker is told."""
        # The worker gets an id of our own: a caller may reuse one while events of its cancelled namesake are under way.
        number = f"{request.id}/{next(self._numbers)}"
        stream = AnswerStream(msgspec.structs.replace(request, id=number), self._unread_bytes)
        timer = self._deadline(stream, request.timeout_s)
        self._streams[number] = stream
        self.none.clear()
        try:
            yield stream
        finally:
            if timer is not None:
                timer.cancel()
            self._close(stream)

    def enqueue(self, stream: AnswerStream) -> None:
        """Let an open stream wait for a worker."""
        self._unsent.append(stream)

    def send(self, worker: WorkerProcess) -> None:
        """Hand waiting requests to the worker while it takes them."""
        self._worker = worker
        while self._unsent and worker.writable:
            stream = self._unsent.popleft()
            if stream.ended:
                continue
            try:
                worker.post(asking(stream.request))
                stream.sent = True
            except EdgeError as error:
                stream.fail(error)

    def tell_unsent(self, progress: Progress) -> None:
        """How far the worker is that they wait for."""
        for stream in self._unsent:
            stream.put(progress)

    def relay(self, number: str, event: Event) -> bool:
        """Pass on what the worker says of a request. False: it was cancelled, and the worker did not know yet."""
        stream = self._streams.get(number)
        if stream is None:
            return False
        if not stream.put(event):
            slow = RequestTimeout(
                f"the reader is too slow: more than {self._unread_bytes:,} bytes of the answer wait to be read",
                hint="read the stream as it comes, or ask for a shorter answer (max_tokens)",
            )
            self._abort(stream, slow, drop=True)
        return True

    def fail_unsent(self, error: EdgeError) -> None:
        """End those that no worker has been given."""
        for stream in self._unsent:
            stream.fail(error)
        self._unsent.clear()

    def fail_all(self, error: EdgeError) -> None:
        """End all of them; the worker is gone."""
        for stream in self._streams.values():
            stream.fail(error)
        self._unsent.clear()

    def abort_all(self, error: EdgeError) -> None:
        """End all of them, and tell the worker."""
        for stream in list(self._streams.values()):
            self._abort(stream, error)

    def _abort(self, stream: AnswerStream, error: EdgeError, *, drop: bool = False) -> None:
        if not stream.ended:
            stream.fail(error, drop=drop)
            self._cancel(stream)

    def _cancel(self, stream: AnswerStream) -> None:
        if stream.sent and self._worker is not None:
            self._worker.post(Cancel(stream.request.id))

    def _close(self, stream: AnswerStream) -> None:
        """The reader is gone, with the whole answer or without."""
        if not stream.ended:
            stream.ended = True
            self._cancel(stream)
        del self._streams[stream.request.id]
        with suppress(ValueError):
            self._unsent.remove(stream)
        if not self._streams:
            self.none.set()

    def _deadline(self, stream: AnswerStream, timeout_s: float | None) -> asyncio.TimerHandle | None:
        if timeout_s is None:
            return None
        error = RequestTimeout("the request's time limit passed before the answer was complete")
        return asyncio.get_running_loop().call_later(timeout_s, lambda: self._abort(stream, error))
