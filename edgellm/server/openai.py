"""OpenAI's API: chat completions, completions, embeddings, models. What the official client and those like it speak."""

from __future__ import annotations

import uuid
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import aclosing
from typing import Any

import msgspec
from fastapi import APIRouter, Request
from starlette.responses import Response

from edgellm.contracts.events import Event, Failed
from edgellm.errors import NotFound
from edgellm.server import embeddings, openai_requests
from edgellm.server.answer import StreamedAnswer, WholeAnswer
from edgellm.server.body import Limits, parsed
from edgellm.server.front import Front
from edgellm.server.openai_replies import Kind, Reply
from edgellm.server.openai_requests import Asked
from edgellm.service import ModelCard

OWNER = "edgellm"


class ModelNotFound(NotFound):
    """As OpenAI's clients know it."""

    code = "model_not_found"


def router(front: Front, limits: Limits) -> APIRouter:
    """The routes under /v1."""
    api = OpenAI(front, limits)
    routes = APIRouter(prefix="/v1")
    routes.add_api_route("/chat/completions", api.chat_completions, methods=["POST"], response_model=None)
    routes.add_api_route("/completions", api.completions, methods=["POST"], response_model=None)
    routes.add_api_route("/embeddings", api.embeddings, methods=["POST"], response_model=None)
    routes.add_api_route("/models", api.models, methods=["GET"], response_model=None)
    routes.add_api_route("/models/{name:path}", api.model, methods=["GET"], response_model=None)
    return routes


class OpenAI:
    """The handlers."""

    def __init__(self, front: Front, limits: Limits) -> None:
        self._front = front
        self._limits = limits

    async def chat_completions(self, request: Request) -> Response:
        return await self._answer(request, "chat", "chatcmpl-", openai_requests.chat)

    async def completions(self, request: Request) -> Response:
        return await self._answer(request, "completion", "cmpl-", openai_requests.completion)

    async def embeddings(self, request: Request) -> Response:
        name = "embd-" + uuid.uuid4().hex
        asked = await parsed(request, self._limits, lambda body: embeddings.parse(body, name))
        card = self._find(asked.request.model)
        events = self._front.embed(asked.request, card)
        return WholeAnswer(events, lambda events: embeddings.answer(events, card.name, asked))

    async def models(self) -> Response:
        return _json({"object": "list", "data": [_model(card) for card in self._front.service.models()]})

    async def model(self, name: str) -> Response:
        return _json(_model(self._find(name)))

    async def _answer(
        self, request: Request, kind: Kind, prefix: str, parse: Callable[[bytes, str], Asked]
    ) -> Response:
        name = prefix + uuid.uuid4().hex
        asked = await parsed(request, self._limits, lambda body: parse(body, name))
        card = self._find(asked.request.model)
        reply = Reply(kind, asked.request, card.name, card.fingerprint)
        wanted = msgspec.structs.replace(asked.request, cache_key=request.state.cache_key)
        events = _named(self._front.generate(wanted, card), "messages" if kind == "chat" else "prompt")
        if not asked.stream:
            return WholeAnswer(events, reply.whole)

        def render(events: AsyncIterator[Event]) -> AsyncGenerator[bytes, None]:
            return reply.stream(events, asked.include_usage)

        return StreamedAnswer(events, render, self._limits)

    def _find(self, name: str) -> ModelCard:
        try:
            return self._front.model(name)
        except NotFound as error:
            raise ModelNotFound(error.message, hint=error.hint, param="model") from error


async def _named(events: AsyncGenerator[Event, None], field: str) -> AsyncGenerator[Event, None]:
    """The same events; an error about the prompt names the field that holds it in this dialect."""
    async with aclosing(events):
        async for event in events:
            if isinstance(event, Failed) and event.error.param in ("messages", "prompt"):
                event = Failed(msgspec.structs.replace(event.error, param=field))
            yield event


def _model(card: ModelCard) -> dict[str, Any]:
    return {"id": card.name, "object": "model", "created": card.created, "owned_by": OWNER}


def _json(value: object) -> Response:
    return Response(msgspec.json.encode(value), media_type="application/json")
