"""Events -> OpenAI's response bodies: whole answers and chunks, of chats and of completions.

Field by field as the official client's types have them. Additions, which clients ignore that do not know them: `seed`,
`timings`, `dropped_tokens` of a context that slid, `reasoning_content` for thoughts (in messages, deltas and logprobs).
"""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Sequence
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
    TokenInfo,
    Usage,
    figures,
)
from edgellm.contracts.request import GenerateRequest
from edgellm.errors import EdgeError, ErrorInfo, GenerationFailed
from edgellm.server.errors import openai_error, status_of
from edgellm.server.openai_logprobs import CompletionColumns, chat_entries
from edgellm.server.sse import DONE, data

Kind = Literal["chat", "completion"]
_NO_END = GenerationFailed("the answer broke off").info


class _Choice:
    """One of the answers, as far as it has come."""

    def __init__(self) -> None:
        self.texts: list[str] = []
        self.thoughts: list[str] = []
        self.tokens: list[TokenInfo] = []
        self.thought_tokens: list[TokenInfo] = []
        self.columns = CompletionColumns()
        self.reason: FinishReason | None = None


class Reply:
    """The answer to one request, built up from its events; id, time, model and fingerprint stay the same throughout."""

    def __init__(self, kind: Kind, request: GenerateRequest, model: str, fingerprint: str) -> None:
        self._kind = kind
        self._logprobs = request.logprobs is not None
        self._head = {
            "id": request.id,
            "object": "",
            "created": int(time.time()),
            "model": model,
            "system_fingerprint": fingerprint,
        }
        self._choices = [_Choice() for _ in range(request.n)]
        self._generated = max(request.n, request.best_of)  # choices
        self._seed: int | None = None
        self._dropped = 0

    # -- whole -----------------------------------------------------------------------------------

    async def whole(self, events: AsyncIterator[Event]) -> bytes:
        """The body of a request without `stream`. Raises the EdgeError that the request failed with."""
        async for event in events:
            match event:
                case Failed(error):
                    raise EdgeError.from_info(error)
                case ReasoningDelta() | TextDelta():
                    self._take(event)
                case ChoiceDone(reason, choice):
                    self._choices[choice].reason = reason
                case Finished(usage, timings):
                    choices = [self._whole(index, choice) for index, choice in enumerate(self._choices)]
                    body = self._object(choices, stream=False) | {"usage": _usage(usage)}
                    return msgspec.json.encode(body | self._extras(usage, timings))
                case _:
                    self._note(event)
        raise EdgeError.from_info(_NO_END)

    def _take(self, delta: ReasoningDelta | TextDelta) -> None:
        """A completion is one text: what is thought in it stays in its place."""
        choice = self._choices[delta.choice]
        thought = self._kind == "chat" and isinstance(delta, ReasoningDelta)
        (choice.thoughts if thought else choice.texts).append(delta.text)
        (choice.thought_tokens if thought else choice.tokens).extend(delta.tokens)

    def _whole(self, index: int, choice: _Choice) -> dict[str, Any]:
        text, thoughts = "".join(choice.texts), "".join(choice.thoughts)
        body: dict[str, Any] = {"index": index, "logprobs": None, "finish_reason": choice.reason or "stop"}
        if self._logprobs:
            body["logprobs"] = self._likelihoods(choice, choice.tokens, choice.thought_tokens)
        if self._kind == "completion":
            return body | {"text": text}
        message = {"role": "assistant", "content": text, "refusal": None}
        return body | {"message": message | ({"reasoning_content": thoughts} if thoughts else {})}

    # -- streamed --------------------------------------------------------------------------------

    async def stream(self, events: AsyncIterator[Event], include_usage: bool) -> AsyncGenerator[bytes, None]:
        """Server-sent events, from the first that is due to [DONE]. A failure is an event as well, and the last."""
        opened = ended = False
        last = 0
        nulls = {"usage": None} if include_usage else {}
        async for event in events:
            if not opened and isinstance(event, Started | ReasoningDelta | TextDelta | ChoiceDone):
                opened = True
                for chunk in self._opening():
                    yield data(chunk | nulls)
            match event:
                case ReasoningDelta() | TextDelta():
                    yield data(self._piece(event) | nulls)
                case ChoiceDone(reason, choice):
                    self._choices[choice].reason = reason
                    if self._open:  # the last one's end goes out with what is known at the end of all
                        yield data(self._end(choice) | nulls)
                    else:
                        last = choice
                case Finished(usage, timings):
                    ended = True
                    yield data(self._end(last) | nulls | self._extras(usage, timings))
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

    @property
    def _open(self) -> bool:
        return any(choice.reason is None for choice in self._choices)

    def _opening(self) -> Iterator[dict[str, Any]]:
        """A chat's choices say first who speaks."""
        if self._kind == "chat":
            for index in range(len(self._choices)):
                yield self._chunk(index, {"role": "assistant", "content": ""})

    def _piece(self, delta: TextDelta | ReasoningDelta) -> dict[str, Any]:
        thought = isinstance(delta, ReasoningDelta)
        said: dict[str, str] | str = delta.text
        if self._kind == "chat":
            said = {"reasoning_content" if thought else "content": delta.text}
        logprobs = None
        if delta.tokens:
            parts = ((), delta.tokens) if thought else (delta.tokens, ())
            logprobs = self._likelihoods(self._choices[delta.choice], *parts)
        return self._chunk(delta.choice, said, logprobs)

    def _end(self, index: int) -> dict[str, Any]:
        said: dict[str, str] | str = {} if self._kind == "chat" else ""
        return self._chunk(index, said, reason=self._choices[index].reason or "stop")

    def _chunk(
        self,
        index: int,
        said: dict[str, str] | str,
        logprobs: dict[str, Any] | None = None,
        reason: FinishReason | None = None,
    ) -> dict[str, Any]:
        name = "delta" if self._kind == "chat" else "text"
        choice = {"index": index, name: said, "logprobs": logprobs, "finish_reason": reason}
        return self._object([choice], stream=True)

    # -- parts -----------------------------------------------------------------------------------

    def _note(self, event: Event) -> None:
        if isinstance(event, Started):
            self._seed = event.seed
        elif isinstance(event, Slid):
            self._dropped += event.dropped

    def _likelihoods(
        self, choice: _Choice, tokens: Sequence[TokenInfo], thoughts: Sequence[TokenInfo]
    ) -> dict[str, Any]:
        """Log probabilities in the form of the endpoint; thoughts have a list of their own."""
        if self._kind == "completion":
            return choice.columns.take((*thoughts, *tokens))
        body: dict[str, Any] = {"content": chat_entries(tokens), "refusal": None}
        return body | ({"reasoning_content": chat_entries(thoughts)} if thoughts else {})

    def _object(self, choices: list[dict[str, Any]], *, stream: bool) -> dict[str, Any]:
        name = "text_completion" if self._kind == "completion" else "chat.completion"
        return self._head | {
            "object": name + (".chunk" if stream and self._kind == "chat" else ""),
            "choices": choices,
        }

    def _extras(self, usage: Usage, timings: Timings) -> dict[str, Any]:
        extras = {"seed": self._seed, "timings": figures(usage, timings, self._generated)}
        return extras | {"dropped_tokens": self._dropped} if self._dropped else extras


def _failure(error: ErrorInfo) -> bytes:
    return data(openai_error(error, status_of(error)))


def _usage(usage: Usage) -> dict[str, Any]:
    return {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
        "prompt_tokens_details": {"cached_tokens": usage.cached_tokens},
    }
