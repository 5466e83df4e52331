"""uvicorn, set up as the daemon needs it."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import socket
import time
from collections.abc import Callable, Iterator
from typing import Any

import uvicorn
from starlette.types import ASGIApp

from edgellm.server.body import Limits
from edgellm.server.protocol import protocol_class

logger = logging.getLogger(__name__)

BACKLOG = 2048  # connections that the kernel keeps until they are accepted
TOLD_EVERY_S = 60.0  # that none can be accepted
_EXHAUSTED = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})
KEEP_ALIVE_S = 30  # an unused connection stays open
_LAST_BYTES_S = 1  # at the end, for responses that are whole but not yet read


class WebServer(uvicorn.Server):
    """A server that leaves signals alone: the daemon decides when it ends, and lets requests finish before."""

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        asyncio.get_running_loop().set_exception_handler(told_now_and_then())
        await super().startup(sockets)
        for listening in sockets or ():
            listening.listen(BACKLOG)  # for asyncio `backlog` is also how many it accepts at once, which is to be few

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def told_now_and_then() -> Callable[[asyncio.AbstractEventLoop, dict[str, Any]], None]:
    """A loop's exception handler that says in a line, once a minute, what asyncio says of every connection it cannot
    accept, with a traceback: thousands a second, until the disk that the log is on is full, too."""
    told: float | None = None

    def handle(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        nonlocal told
        error = context.get("exception")
        if not (isinstance(error, OSError) and error.errno in _EXHAUSTED and "socket" in context):
            loop.default_exception_handler(context)
        elif told is None or time.monotonic() - told >= TOLD_EVERY_S:
            told = time.monotonic()
            logger.warning("connections have to wait: %s (`ulimit -n` is how many files may be open)", error.strerror)

    return handle


def web_server(app: ASGIApp, limits: Limits) -> WebServer:
    """A server for `app`; `serve(sockets=[…])` runs it until `should_exit` is set."""
    return WebServer(
        uvicorn.Config(
            app,
            backlog=limits.accepted,
            http=protocol_class(limits),
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            proxy_headers=False,
            server_header=False,
            timeout_keep_alive=KEEP_ALIVE_S,
            timeout_graceful_shutdown=_LAST_BYTES_S,
            h11_max_incomplete_event_size=limits.header_bytes,
        )
    )
