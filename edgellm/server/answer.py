"""A request's events as an HTTP response.

The status of a stream is decided late: at its first word, or when `hold_s` have passed without one, so that a
request that fails before it says anything gets the status of its failure. From then on failures travel in the
stream. A client that hangs up, at any time, closes the events and so cancels the request.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import aclosing
from typing import Any

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from edgellm.contracts.events import Event, Failed, Progress, Started
from edgellm.errors import EdgeError
from edgellm.server.body import Limits
from edgellm.server.errors import error_response
from edgellm.server.sse import PING, StreamBody

Events = AsyncGenerator[Event, None]
Render = Callable[[AsyncIterator[Event]], AsyncGenerator[bytes, None]]
Collect = Callable[[AsyncIterator[Event]], Awaitable[bytes]]


class WholeAnswer(Response):
    """One body, once all of it is there."""

    def __init__(self, events: Events, collect: Collect) -> None:
        super().__init__(media_type="application/json")
        self._events = events
        self._collect = collect

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await until_hangup(receive, self._answer(scope, receive, send))

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        async with aclosing(self._events) as events:
            try:
                body = await self._collect(events)
            except EdgeError as error:
                response = error_response(error.info, scope["path"])
            else:
                response = Response(body, media_type="application/json")
        await response(scope, receive, send)


class StreamedAnswer(Response):
    """A body that grows with the events."""

    def __init__(
        self,
        events: Events,
        render: Render,
        limits: Limits,
        *,
        media_type: str = "text/event-stream",
        ping: bytes = PING,
        hold: bool = True,
    ) -> None:
        # no-buffering is for reverse proxies: pass on what comes.
        super().__init__(headers={"cache-control": "no-store", "x-accel-buffering": "no"}, media_type=media_type)
        del self.headers["content-length"]
        self._events = events
        self._render = render
        self._limits = limits
        self._ping = ping
        self._hold_s = limits.hold_s if hold else 0.0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await until_hangup(receive, self._answer(scope, receive, send))

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        body = StreamBody(send, 200, self.raw_headers, self._ping)
        alive = asyncio.create_task(body.keep_alive(self._hold_s, self._limits.ping_s))
        try:
            decided = _decided(self._events, body)
            async with aclosing(self._events), aclosing(decided), aclosing(self._render(decided)) as pieces:
                async for piece in pieces:
                    await body.write(piece)
            await body.end()
        except EdgeError as error:
            if body.started:
                raise
            await error_response(error.info, scope["path"])(scope, receive, send)
        finally:
            await ended(alive)


async def _decided(events: Events, body: StreamBody) -> Events:
    """Pass on events; start the response at the first word, raise where the request fails before it."""
    async for event in events:
        if not body.started:
            if isinstance(event, Failed):
                body.give_up()
                raise EdgeError.from_info(event.error)
            if not isinstance(event, Progress | Started):
                await body.start()
        yield event


async def until_hangup(receive: Receive, work: Coroutine[Any, Any, None]) -> None:
    """Do `work`, but not a moment longer than the client is there."""
    main = asyncio.create_task(work)
    watch = asyncio.create_task(_hangup(receive))
    try:
        await asyncio.wait({main, watch}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        await ended(watch)
        await ended(main)
    if not main.cancelled():
        main.result()


async def ended(task: asyncio.Task[None]) -> None:
    """Cancel a task that still runs and wait until it has cleaned up."""
    task.cancel()
    await asyncio.wait({task})


async def _hangup(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
