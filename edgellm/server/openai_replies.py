"""Events -> OpenAI's response bodies: whole answers and chunks, of chats and of completions.

Field by field as the official client's types have them. Additions, which clients ignore that do not know them: `seed`,
`timings`, `dropped_tokens` of a context that slid, `reasoning_content` for thoughts.
"""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, AsyncIterator
from typing import Any, Literal

import msgspec

from edgellm.contracts.events import (
    ChoiceDone,
    Event,
    Failed,
    Finished,
    FinishReason,
    ReasoningDelta,
    Slid,
    Started,
    TextDelta,
    Timings,
    Usage,
)
from edgellm.errors import EdgeError, ErrorInfo, GenerationFailed
from edgellm.server.errors import openai_error, status_of
from edgellm.server.sse import DONE, data

Kind = Literal["chat", "completion"]
_NO_END = GenerationFailed("the answer broke off").info


class Reply:
    """The answer to one request, built up from its events; id, time, model and fingerprint stay the same throughout."""

    def __init__(self, kind: Kind, id: str, model: str, fingerprint: str) -> None:
        self._kind = kind
        self._head = {
            "id": id,
            "object": "",
            "created": int(time.time()),
            "model": model,
            "system_fingerprint": fingerprint,
        }
        self._seed: int | None = None
        self._dropped = 0
        self._reason: FinishReason | None = None

    # -- whole -----------------------------------------------------------------------------------

    async def whole(self, events: AsyncIterator[Event]) -> bytes:
        """The body of a request without `stream`. Raises the EdgeError that the request failed with."""
        texts: list[str] = []
        thoughts: list[str] = []
        async for event in events:
            match event:
                case Failed(error):
                    raise EdgeError.from_info(error)
                case ReasoningDelta(text):
                    thoughts.append(text)
                case TextDelta(text):
                    texts.append(text)
                case Finished(usage, timings):
                    return msgspec.json.encode(self._whole("".join(thoughts), "".join(texts), usage, timings))
                case _:
                    self._note(event)
        raise EdgeError.from_info(_NO_END)

    def _whole(self, thoughts: str, text: str, usage: Usage, timings: Timings) -> dict[str, Any]:
        choice: dict[str, Any] = {"index": 0, "logprobs": None, "finish_reason": self._reason or "stop"}
        if self._kind == "chat":
            choice["message"] = {"role": "assistant", "content": text, "refusal": None}
            if thoughts:
                choice["message"]["reasoning_content"] = thoughts
        else:
            choice["text"] = text
        return self._object([choice], stream=False) | {"usage": _usage(usage)} | self._extras(usage, timings)

    # -- streamed --------------------------------------------------------------------------------

    async def stream(self, events: AsyncIterator[Event], include_usage: bool) -> AsyncGenerator[bytes, None]:
        """Server-sent events, from the first that is due to [DONE]. A failure is an event as well, and the last."""
        opened = ended = False
        async for event in events:
            if not opened and isinstance(event, Started | ReasoningDelta | TextDelta | ChoiceDone):
                opened = True
                if self._kind == "chat":
                    yield self._chunk({"role": "assistant", "content": ""}, include_usage)
            match event:
                case ReasoningDelta(text):
                    yield self._chunk({"reasoning_content": text}, include_usage)
                case TextDelta(text):
                    yield self._chunk({"content": text} if self._kind == "chat" else text, include_usage)
                case Finished(usage, timings):
                    ended = True
                    yield self._last(usage, timings, include_usage)
                    if include_usage:
                        yield data(self._object([], stream=True) | {"usage": _usage(usage)})
                    yield DONE
                case Failed(error):
                    ended = True
                    yield _failure(error)
                case _:
                    self._note(event)
        if not ended:
            yield _failure(_NO_END)

    def _chunk(self, delta: dict[str, str] | str, with_usage: bool) -> bytes:
        return data(self._delta(delta, None) | ({"usage": None} if with_usage else {}))

    def _last(self, usage: Usage, timings: Timings, with_usage: bool) -> bytes:
        body = self._delta({} if self._kind == "chat" else "", self._reason or "stop")
        return data(body | ({"usage": None} if with_usage else {}) | self._extras(usage, timings))

    def _delta(self, delta: dict[str, str] | str, reason: FinishReason | None) -> dict[str, Any]:
        name = "delta" if self._kind == "chat" else "text"
        return self._object([{"index": 0, name: delta, "logprobs": None, "finish_reason": reason}], stream=True)

    # -- parts -----------------------------------------------------------------------------------

    def _note(self, event: Event) -> None:
        if isinstance(event, Started):
            self._seed = event.seed
        elif isinstance(event, ChoiceDone):
            self._reason = event.reason
        elif isinstance(event, Slid):
            self._dropped += event.dropped

    def _object(self, choices: list[dict[str, Any]], *, stream: bool) -> dict[str, Any]:
        name = "text_completion" if self._kind == "completion" else "chat.completion"
        return self._head | {
            "object": name + (".chunk" if stream and self._kind == "chat" else ""),
            "choices": choices,
        }

    def _extras(self, usage: Usage, timings: Timings) -> dict[str, Any]:
        extras = {"seed": self._seed, "timings": timings_body(usage, timings)}
        return extras | {"dropped_tokens": self._dropped} if self._dropped else extras


def timings_body(usage: Usage, timings: Timings) -> dict[str, float | None]:
    """Seconds, and the rates people ask for. The first token belongs to the prefill, hence the minus one."""
    prompt = usage.prompt_tokens - usage.cached_tokens
    decoded = usage.completion_tokens - 1
    return {
        "queue_s": round(timings.queue_s, 6),
        "prefill_s": round(timings.prefill_s, 6),
        "decode_s": round(timings.decode_s, 6),
        "total_s": round(timings.total_s, 6),
        "ttft_s": round(timings.ttft_s, 6),
        "prompt_tokens_per_s": round(prompt / timings.prefill_s, 2) if timings.prefill_s > 0 else None,
        "tokens_per_s": round(decoded / timings.decode_s, 2) if decoded > 0 and timings.decode_s > 0 else None,
    }


def _failure(error: ErrorInfo) -> bytes:
    return data(openai_error(error, status_of(error)))


def _usage(usage: Usage) -> dict[str, Any]:
    return {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
        "prompt_tokens_details": {"cached_tokens": usage.cached_tokens},
    }
