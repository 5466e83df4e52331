"""uvicorn, set up as the daemon needs it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import uvicorn
from starlette.types import ASGIApp

from edgellm.server.body import Limits
from edgellm.server.protocol import protocol_class

KEEP_ALIVE_S = 30  # an unused connection stays open
_LAST_BYTES_S = 1  # at the end, for responses that are whole but not yet read


class WebServer(uvicorn.Server):
    """A server that leaves signals alone: the daemon decides when it ends, and lets requests finish before."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def web_server(app: ASGIApp, limits: Limits) -> WebServer:
    """A server for `app`; `serve(sockets=[…])` runs it until `should_exit` is set."""
    return WebServer(
        uvicorn.Config(
            app,
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
