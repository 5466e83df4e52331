"""The ASGI application: every dialect's routes behind one guard."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
from fastapi import FastAPI, Request
from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.routing import Match
from starlette.types import ASGIApp, Receive, Scope, Send

from edgellm import __version__
from edgellm.errors import EdgeError, ErrorInfo
from edgellm.server import metrics, native, openai
from edgellm.server.body import Limits
from edgellm.server.errors import ClientGone, Refusal, error_response
from edgellm.server.front import Front
from edgellm.server.openapi import document
from edgellm.server.security import Guard, Security
from edgellm.service import Service

QUIET_PATHS = frozenset({"/", "/health", "/metrics"})  # asking these keeps no idle daemon alive
_GREETING = """edgellm {version} is running.

chat         POST {url}/v1/chat/completions   (OpenAI's API; its clients take {url}/v1 as base URL)
embeddings   POST {url}/v1/embeddings
models       GET  {url}/v1/models
health       GET  {url}/health, and Prometheus figures at /metrics
all of it    GET  {url}/openapi.json
"""
_WHERE = "OpenAI's clients take http://…/v1 as their base URL; GET / says what is where"


def build_app(
    service: Service,
    security: Security,
    *,
    limits: Limits | None = None,
    shutdown: Callable[[], None] | None = None,
    replaceable: bool = False,
) -> FastAPI:
    """The application; its `state.front` is the `Front` through which all requests pass.

    `shutdown` is called when a client that knows the daemon's token asks for the end; `replaceable` as `Front` has it.
    """
    limits = limits or Limits()
    front = Front(service, replaceable=replaceable)
    app = FastAPI(title="edgellm", version=__version__, openapi_url=None, redirect_slashes=False)
    app.state.front = front
    app.include_router(openai.router(front, limits))
    app.include_router(native.router(front, security, limits, shutdown))
    _add_monitoring(app, front, security)
    app.add_exception_handler(EdgeError, _on_edge_error)
    app.add_exception_handler(Refusal, _on_refusal)
    app.add_exception_handler(ClientGone, _on_client_gone)
    app.add_exception_handler(HTTPException, _on_http_exception)
    app.add_middleware(Activity, front=front)
    # The last one added is the outermost.
    app.add_middleware(Guard, security=security, limits=limits, responded=front.metrics.responded, known=_known(app))
    return app


def _known(app: FastAPI) -> Callable[[Scope], bool]:
    """Whether a request's path is one of the application's, whatever the method."""
    routes = app.routes  # the list itself
    return lambda scope: any(route.matches(scope)[0] is not Match.NONE for route in routes)


class Activity:
    """Notes that somebody wants something of the daemon."""

    def __init__(self, app: ASGIApp, front: Front) -> None:
        self._app = app
        self._front = front

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["path"] not in QUIET_PATHS:
            self._front.touch()
        await self._app(scope, receive, send)


def _add_monitoring(app: FastAPI, front: Front, security: Security) -> None:
    @app.api_route("/health", methods=["GET", "HEAD"], response_model=None)
    async def health(request: Request) -> Response:
        """Open to all; what it says of models is for those who may use them."""
        found = front.service.health()
        status = "draining" if front.draining else found.status
        body: dict[str, Any] = {"status": status, "version": __version__}
        if not security.keys.required() or security.key_known(request.headers):
            body["models"] = found.models
        return Response(msgspec.json.encode(body), 503 if front.draining else 200, media_type="application/json")

    @app.api_route("/", methods=["GET", "HEAD"], response_model=None)
    async def greeting(request: Request) -> Response:
        """For people with a browser, and for clients of other servers that ask whether one is here."""
        url = f"http://{request.headers['host']}"
        return Response(_GREETING.format(version=__version__, url=url), media_type="text/plain")

    @app.get("/openapi.json", response_model=None)
    async def openapi() -> Response:
        body = msgspec.json.encode(document(keys=security.keys.required()))
        return Response(body, media_type="application/json")

    @app.get("/metrics", response_model=None)
    async def prometheus() -> Response:
        return Response(front.metrics.render(), media_type=metrics.CONTENT_TYPE)


async def _on_edge_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, EdgeError)
    return error_response(error.info, request.url.path)


async def _on_refusal(request: Request, error: Exception) -> Response:
    assert isinstance(error, Refusal)
    # A body that came too late still comes; one that was too large is read and dropped, or its sender, who looks up
    # only when all is sent, would never see the answer.
    headers = {"connection": "close"} if error.status == 408 else {}
    return error_response(error.info, request.url.path, error.status, headers)


async def _on_client_gone(_request: Request, _error: Exception) -> Response:
    return Response(status_code=499)  # nobody reads it


async def _on_http_exception(request: Request, error: Exception) -> Response:
    """No such route, or not with this method."""
    assert isinstance(error, HTTPException)
    path, method = request.url.path, request.method
    known = {
        404: ErrorInfo("not_found", f"there is nothing at {method} {path[:200]}", _WHERE),
        405: ErrorInfo("method_not_allowed", f"{method} is not allowed at {path[:200]}"),
    }
    info = known.get(error.status_code, ErrorInfo("http_error", error.detail))
    return error_response(info, path, error.status_code, error.headers)
