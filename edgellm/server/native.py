"""The daemon's own API under /edgellm/v1, spoken by `edgellm.client`: events as they are, one JSON object a line."""

from __future__ import annotations

import os
import uuid
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from typing import Annotated

import msgspec
from fastapi import APIRouter, Request
from starlette.responses import Response

from edgellm import __version__
from edgellm.contracts.events import Event
from edgellm.contracts.ranges import MOST
from edgellm.contracts.request import GenerateRequest, Messages, Tokens
from edgellm.errors import InvalidRequest, Unauthorized
from edgellm.presets import preset
from edgellm.server.answer import StreamedAnswer
from edgellm.server.body import Limits, decode, parsed, read_body
from edgellm.server.errors import Refusal
from edgellm.server.front import Front
from edgellm.server.openai_bodies import STOP_CHARACTERS, STOPS
from edgellm.server.sampling_fields import check_sampling
from edgellm.server.security import Security
from edgellm.server.sse import BLANK, line
from edgellm.server.template_options import checked_options

PREFIX = "/edgellm/v1"


class GenerateBody(GenerateRequest, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """The request as it is. A field that nothing here knows would be a wish that is passed over in silence."""


class StopBody(msgspec.Struct):
    model: Annotated[str, msgspec.Meta(min_length=1, max_length=256)]


class ShutdownBody(msgspec.Struct):
    """`if_idle`: only a daemon in the background that has nothing to do, so that another can take its place."""

    if_idle: bool = False


def router(front: Front, security: Security, limits: Limits, shutdown: Callable[[], None] | None) -> APIRouter:
    """The routes under /edgellm/v1."""
    api = Native(front, security, limits, shutdown)
    routes = APIRouter(prefix=PREFIX)
    routes.add_api_route("/generate", api.generate, methods=["POST"], response_model=None)
    routes.add_api_route("/ps", api.ps, methods=["GET"], response_model=None)
    routes.add_api_route("/stop", api.stop, methods=["POST"], response_model=None)
    routes.add_api_route("/shutdown", api.shutdown, methods=["POST"], response_model=None)
    routes.add_api_route("/version", api.version, methods=["GET"], response_model=None)
    return routes


class Native:
    """The handlers."""

    def __init__(self, front: Front, security: Security, limits: Limits, shutdown: Callable[[], None] | None) -> None:
        self._front = front
        self._security = security
        self._limits = limits
        self._shutdown = shutdown

    async def generate(self, request: Request) -> Response:
        """The status comes at once and progress with it: this client wants to see a model load."""
        asked = await parsed(request, self._limits, lambda body: checked(decode(body, GenerateBody)))
        asked = msgspec.structs.replace(asked, id=f"edge-{uuid.uuid4().hex}", cache_key=request.state.cache_key)
        events = self._front.generate(asked, self._front.model(asked.model))
        return StreamedAnswer(events, _lines, self._limits, media_type="application/x-ndjson", ping=BLANK, hold=False)

    async def ps(self) -> Response:
        return _json({"models": list(self._front.service.loaded())})

    async def stop(self, request: Request) -> Response:
        asked = decode(await read_body(request, self._limits), StopBody)
        return _json({"stopped": await self._front.service.stop(asked.model)})

    async def shutdown(self, request: Request) -> Response:
        """Only for those who can read daemon.json: an API key alone must not end everybody's daemon."""
        if self._shutdown is None or not self._security.token_known(request.headers):
            raise Unauthorized("stopping the daemon needs its own token", hint="use `edgellm stop`, as its user")
        asked = decode(await read_body(request, self._limits), ShutdownBody)
        if asked.if_idle and not await self._front.may_leave():
            raise Refusal(409, "busy", "this daemon is in use", hint=f"answers under way: {self._front.running}")
        self._shutdown()
        return _json({"stopping": True}, 202)

    async def version(self) -> Response:
        return _json({"version": __version__, "pid": os.getpid()})


def checked(request: GenerateRequest) -> GenerateRequest:
    """The request, if its values are in range; its types are right already. Raises InvalidRequest naming the field."""
    if isinstance(request.prompt, Messages) and not request.prompt.messages:
        raise InvalidRequest("messages must hold at least one message", param="prompt")
    if isinstance(request.prompt, Messages):
        checked_options(request.prompt.options, "options")
    preset(request.preset)  # refused here, where it is unknown
    if isinstance(request.prompt, Tokens) and not all(0 <= token <= MOST for token in request.prompt.ids):
        raise InvalidRequest("token ids are whole numbers below 2^31", param="prompt")
    check_sampling(request)
    if request.max_tokens is not None and not 1 <= request.max_tokens <= MOST:
        raise InvalidRequest("max_tokens must be at least 1 and below 2^31", param="max_tokens")
    if len(request.stop) > STOPS or not all(0 < len(text) <= STOP_CHARACTERS for text in request.stop):
        raise InvalidRequest(f"stop takes up to {STOPS} texts of 1 to {STOP_CHARACTERS} characters", param="stop")
    if not -1000 <= request.priority <= 1000:
        raise InvalidRequest("priority must be between -1000 and 1000", param="priority")
    if request.timeout_s is not None and not request.timeout_s > 0:
        raise InvalidRequest("timeout_s must be above 0", param="timeout_s")
    return request


async def _lines(events: AsyncIterator[Event]) -> AsyncGenerator[bytes, None]:
    async for event in events:
        yield line(event)


def _json(value: object, status: int = 200) -> Response:
    return Response(msgspec.json.encode(value), status, media_type="application/json")
