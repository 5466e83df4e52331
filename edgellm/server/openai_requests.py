"""OpenAI's request bodies -> GenerateRequest.

Strict about what it knows: wrong types and values out of range are a 400 naming the field, and so is a known
field that would change the answer and is not supported yet. Tolerant of what it does not know, since clients
send much of their own.
"""

from __future__ import annotations

import msgspec

from edgellm.contracts.ranges import MOST
from edgellm.contracts.request import GenerateRequest, Message, Messages, Prompt, Sampling, Text, Tokens
from edgellm.errors import InvalidRequest
from edgellm.presets import preset
from edgellm.server.body import decode
from edgellm.server.openai_bodies import (
    ALIASES,
    ROLES,
    STOPS,
    Body,
    ChatBody,
    ChatMessage,
    CompletionBody,
    Part,
    neutral_values,
)
from edgellm.server.sampling_fields import check_best_of, sampling_of
from edgellm.server.template_options import options_of

COMPLETION_TOKENS = 16  # what OpenAI's legacy endpoint generates when max_tokens is not given


class Asked(msgspec.Struct, frozen=True):
    """A request, and how its answer is to be sent."""

    request: GenerateRequest
    stream: bool
    include_usage: bool


def chat(body: bytes, request_id: str) -> Asked:
    """Parse the body of /v1/chat/completions. Raises InvalidRequest."""
    asked = decode(body, ChatBody)
    _refuse_unsupported(asked)
    if not asked.messages:
        raise InvalidRequest("messages must hold at least one message", param="messages")
    options = options_of(asked.chat_template_kwargs, asked.reasoning_effort)
    prompt = Messages(tuple(_message(index, message) for index, message in enumerate(asked.messages)), options)
    limit = asked.max_tokens if asked.max_completion_tokens is None else asked.max_completion_tokens
    if asked.top_logprobs and not asked.logprobs:
        raise InvalidRequest("top_logprobs needs logprobs to be true", param="top_logprobs")
    return _asked(asked, request_id, prompt, limit, logprobs=(asked.top_logprobs or 0) if asked.logprobs else None)


def completion(body: bytes, request_id: str) -> Asked:
    """Parse the body of /v1/completions. Raises InvalidRequest."""
    asked = decode(body, CompletionBody)
    _refuse_unsupported(asked)
    limit = COMPLETION_TOKENS if asked.max_tokens is None else asked.max_tokens
    n = asked.n or 1
    best_of = asked.best_of or n
    check_best_of(n, best_of)
    if asked.stream and asked.best_of not in (None, 1):
        raise InvalidRequest("best_of cannot be streamed: the best are known at the end", param="best_of")
    return _asked(asked, request_id, _prompt(asked.prompt), limit, logprobs=asked.logprobs, best_of=best_of)


def _asked(
    body: Body, request_id: str, prompt: Prompt, max_tokens: int | None, *, logprobs: int | None, best_of: int = 0
) -> Asked:
    stream = bool(body.stream)
    if body.stream_options is not None and not stream:
        raise InvalidRequest("stream_options is only allowed when stream is true", param="stream_options")
    preset(body.preset)  # refused here, where it is unknown
    request = GenerateRequest(
        id=request_id,
        model=body.model,
        prompt=prompt,
        sampling=_sampling(body),
        preset=body.preset,
        max_tokens=max_tokens,
        stop=_stops(body.stop),
        n=body.n or 1,
        best_of=best_of if best_of > (body.n or 1) else 0,
        logprobs=logprobs,
        drafts=body.drafts is not False,
        sliding=body.context_overflow == "slide",
        keep_alive_s=body.keep_alive,
        priority=body.priority or 0,
    )
    usage = body.stream_options is not None and bool(body.stream_options.include_usage)
    return Asked(request, stream, usage)


def _sampling(body: Body) -> Sampling:
    """With the names that other servers have for the same."""
    for theirs, ours in ALIASES.items():
        given = getattr(body, theirs)
        if given is not None and getattr(body, ours) is not None:
            raise InvalidRequest(f"{theirs} and {ours} are two names of one thing; give one", param=theirs)
        if given is not None:
            setattr(body, ours, given)
    if body.top_k == -1:
        body.top_k = 0
    return sampling_of(body)


def _refuse_unsupported(body: ChatBody | CompletionBody) -> None:
    for name, values in neutral_values(type(body)).items():
        given = getattr(body, name)
        if given is not None and given not in values:
            raise InvalidRequest(f"{name} is not supported yet", hint=f"leave {name} out", param=name)


def _message(index: int, message: ChatMessage) -> Message:
    path = f"messages[{index}]"
    role = ROLES.get(message.role)
    if role is None:
        raise InvalidRequest(f"{path}.role must be one of {', '.join(ROLES)}", param=f"{path}.role")
    for name in ("tool_calls", "function_call"):
        if getattr(message, name):
            raise InvalidRequest(f"{path}.{name} is not supported yet", param=f"{path}.{name}")
    return Message(role, _content(path, message.content), message.name)


def _content(path: str, content: str | list[Part] | None) -> str:
    """Text parts joined as they are: clients cut a text into parts, they do not mean paragraphs."""
    if isinstance(content, str):
        return content
    if not content:
        raise InvalidRequest(f"{path}.content is required", param=f"{path}.content")
    texts: list[str] = []
    for index, part in enumerate(content):
        where = f"{path}.content[{index}]"
        if part.type != "text":
            raise InvalidRequest(f"{where}.type must be text: other parts are not supported yet", param=f"{where}.type")
        if part.text is None:
            raise InvalidRequest(f"{where}.text is required", param=f"{where}.text")
        texts.append(part.text)
    return "".join(texts)


def _prompt(prompt: str | list[str | int | list[int]]) -> Prompt:
    """One prompt: a text, token ids, or a list that holds just one of these."""
    if isinstance(prompt, str):
        return Text(prompt)
    if not prompt:
        raise InvalidRequest("prompt must not be empty", param="prompt")
    first = prompt[0]
    if isinstance(first, int):
        ids = tuple(item for item in prompt if isinstance(item, int))
        if len(ids) < len(prompt) or not all(0 <= item <= MOST for item in ids):
            raise InvalidRequest("prompt: a list of token ids holds ids only", param="prompt")
        return Tokens(ids)
    if len(prompt) > 1:
        raise InvalidRequest(
            "several prompts in one request are not supported yet",
            hint="send one request each",
            param="prompt",
        )
    if isinstance(first, str):
        return Text(first)
    if not first:
        raise InvalidRequest("prompt must not be empty", param="prompt")
    return Tokens(tuple(first))


def _stops(stop: str | list[str] | None) -> tuple[str, ...]:
    if stop is None:
        return ()
    stops = (stop,) if isinstance(stop, str) else tuple(stop)
    if len(stops) > STOPS:
        raise InvalidRequest(f"stop takes at most {STOPS} strings", param="stop")
    return stops
