"""The shapes of answers, for the description of the API alone: what sends them builds them as it goes."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from edgellm.contracts.status import Health, LoadedModel
from edgellm.errors import ErrorInfo

Natural = Annotated[int, Meta(ge=0)]
Reason = Literal["stop", "length"]


class CachedTokens(msgspec.Struct):
    cached_tokens: Annotated[int, Meta(ge=0, description="Of the prompt, found in the KV cache")]


class UsageBody(msgspec.Struct):
    prompt_tokens: Natural
    completion_tokens: Natural
    total_tokens: Natural
    prompt_tokens_details: CachedTokens


class TimingsBody(msgspec.Struct):
    """Seconds, and tokens per second. The first token belongs to the prefill."""

    queue_s: float
    prefill_s: float
    decode_s: float
    total_s: float
    ttft_s: float
    drafted: Annotated[int, Meta(ge=0, description="Tokens guessed ahead")]
    accepted: Annotated[int, Meta(ge=0, description="Of these, those the model would have written itself")]
    prompt_tokens_per_s: float | None
    tokens_per_s: float | None


class AnswerMessage(msgspec.Struct):
    role: Literal["assistant"]
    content: str | None
    reasoning_content: Annotated[str, Meta(description="What was thought before, where the model does")] | None = None


class ChatChoice(msgspec.Struct):
    index: Natural
    message: AnswerMessage
    finish_reason: Reason
    logprobs: dict[str, Any] | None


class CompletionChoice(msgspec.Struct):
    index: Natural
    text: str
    finish_reason: Reason
    logprobs: dict[str, Any] | None


class _Answer(msgspec.Struct, kw_only=True):
    id: str
    created: Annotated[int, Meta(description="Unix time")]
    model: Annotated[str, Meta(description="The model's full name")]
    system_fingerprint: Annotated[str, Meta(description="Within one, the same seed gives the same text")]
    usage: UsageBody
    seed: int | None
    timings: TimingsBody


class ChatCompletion(_Answer, kw_only=True):
    object: Literal["chat.completion"]
    choices: list[ChatChoice]


class Completion(_Answer, kw_only=True):
    object: Literal["text_completion"]
    choices: list[CompletionChoice]


class Embedding(msgspec.Struct):
    object: Literal["embedding"]
    index: Natural
    embedding: list[float] | str  # base64 of float32, little-endian


class EmbeddingUsage(msgspec.Struct):
    prompt_tokens: Natural
    total_tokens: Natural


class Embeddings(msgspec.Struct):
    object: Literal["list"]
    data: list[Embedding]
    model: str
    usage: EmbeddingUsage


class Model(msgspec.Struct):
    id: str
    object: Literal["model"]
    created: int
    owned_by: str


class ModelList(msgspec.Struct):
    object: Literal["list"]
    data: list[Model]


class ErrorBody(msgspec.Struct):
    message: str
    type: str
    param: Annotated[str | None, Meta(description="The field that is wrong, where it is a field")]
    code: str


class Error(msgspec.Struct):
    """As OpenAI's clients know it."""

    error: ErrorBody


class NativeError(msgspec.Struct):
    error: ErrorInfo


class LoadedModels(msgspec.Struct):
    models: list[LoadedModel]


class Stopped(msgspec.Struct):
    stopped: Annotated[bool, Meta(description="False: it was not loaded")]


class Stopping(msgspec.Struct):
    stopping: bool


class Version(msgspec.Struct):
    version: str
    pid: int


class HealthBody(msgspec.Struct):
    status: Literal["ok", "loading", "degraded", "draining"]
    version: str
    models: Annotated[dict[str, Health] | msgspec.UnsetType, Meta(description="Left out for those without a key")] = (
        msgspec.UNSET
    )
