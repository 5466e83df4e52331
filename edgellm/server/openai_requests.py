"""OpenAI's request bodies -> GenerateRequest.

Strict about what it knows: wrong types and values out of range are a 400 naming the field, and so is a known
field that would change the answer and is not supported yet. Tolerant of what it does not know, since clients
send much of their own.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from edgellm.contracts.request import GenerateRequest, Message, Messages, Prompt, Role, Sampling, Text, Tokens
from edgellm.errors import InvalidRequest
from edgellm.presets import preset
from edgellm.server.body import decode
from edgellm.server.template_options import Effort, options_of

STOPS = 16  # stop strings of one request
STOP_CHARACTERS = 1000  # of each
ROLES: dict[str, Role] = {
    "system": "system",
    "developer": "system",  # OpenAI's newer name
    "user": "user",
    "assistant": "assistant",
    "tool": "tool",
}
COMPLETION_TOKENS = 16  # what OpenAI's legacy endpoint generates when max_tokens is not given

_Stop = Annotated[str, Meta(min_length=1, max_length=STOP_CHARACTERS)]
_Count = Annotated[int, Meta(ge=1, le=2**31)]
_Token = Annotated[int, Meta(ge=0, lt=2**31)]
_Penalty = Annotated[float, Meta(ge=-2, le=2)]


class StreamOptions(msgspec.Struct):
    include_usage: bool | None = None


class Part(msgspec.Struct):
    """One piece of a message's content; only text is understood."""

    type: str
    text: str | None = None


class ChatMessage(msgspec.Struct):
    role: str
    content: str | list[Part] | None = None
    name: str | None = None
    tool_calls: Any = None
    function_call: Any = None


class _Body(msgspec.Struct, kw_only=True):
    """What both endpoints take, then what both refuse unless it is neutral."""

    model: Annotated[str, Meta(min_length=1, max_length=256)]
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    temperature: Annotated[float, Meta(ge=0, le=2)] | None = None
    top_p: Annotated[float, Meta(gt=0, le=1)] | None = None
    top_k: Annotated[int, Meta(ge=-1, le=2**31)] | None = None  # -1: all, as other local servers have it
    seed: Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)] | None = None
    stop: _Stop | list[_Stop] | None = None
    max_tokens: _Count | None = None
    keep_alive: float | None = None  # seconds
    priority: Annotated[int, Meta(ge=-1000, le=1000)] | None = None  # lower is served first, as in vLLM; 0 is normal
    preset: str | None = None  # sampling for a kind of task
    context_overflow: Literal["error", "slide"] | None = None  # what to do with what does not fit; error if not said

    n: _Count | None = None
    presence_penalty: _Penalty | None = None
    frequency_penalty: _Penalty | None = None
    repetition_penalty: float | None = None
    repeat_penalty: float | None = None
    min_p: float | None = None
    typical_p: float | None = None
    mirostat: int | None = None
    min_tokens: int | None = None
    ignore_eos: bool | None = None
    logit_bias: dict[str, float] | None = None
    stop_token_ids: list[int] | None = None
    response_format: Any = None
    grammar: Any = None
    guided_json: Any = None
    guided_regex: Any = None
    guided_choice: Any = None
    guided_grammar: Any = None
    structured_outputs: Any = None


class ChatBody(_Body, kw_only=True):
    messages: list[ChatMessage]
    max_completion_tokens: _Count | None = None
    reasoning_effort: Effort | None = None
    chat_template_kwargs: dict[str, bool | int | float | str | None] | None = None

    logprobs: bool | None = None
    top_logprobs: Annotated[int, Meta(ge=0, le=20)] | None = None
    tools: list[Any] | None = None
    functions: list[Any] | None = None
    tool_choice: Any = None
    function_call: Any = None
    audio: Any = None
    modalities: list[str] | None = None
    web_search_options: Any = None
    chat_template: Any = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None


class CompletionBody(_Body, kw_only=True):
    prompt: str | list[str | int | list[_Token]]

    logprobs: Annotated[int, Meta(ge=0)] | None = None
    best_of: _Count | None = None
    echo: bool | None = None
    suffix: str | None = None


class Asked(msgspec.Struct, frozen=True):
    """A request, and how its answer is to be sent."""

    request: GenerateRequest
    stream: bool
    include_usage: bool


# Values besides null that change nothing. A field that is not here is refused whenever it is given.
_NEUTRAL: dict[str, tuple[Any, ...]] = {
    "n": (1,),
    "presence_penalty": (0,),
    "frequency_penalty": (0,),
    "repetition_penalty": (1,),
    "repeat_penalty": (1,),
    "min_p": (0,),
    "typical_p": (1,),
    "mirostat": (0,),
    "min_tokens": (0,),
    "ignore_eos": (False,),
    "logit_bias": ({},),
    "stop_token_ids": ([],),
    "response_format": ({"type": "text"},),
    "grammar": ("",),
    "guided_json": (),
    "guided_regex": (),
    "guided_choice": (),
    "guided_grammar": (),
    "structured_outputs": (),
}
_CHAT_NEUTRAL: dict[str, tuple[Any, ...]] = _NEUTRAL | {
    "logprobs": (False,),
    "top_logprobs": (0,),
    "tools": ([],),
    "functions": ([],),
    "tool_choice": ("none", "auto"),
    "function_call": ("none", "auto"),
    "audio": (),
    "modalities": (["text"],),
    "web_search_options": (),
    "chat_template": (),
    "add_generation_prompt": (True,),
    "continue_final_message": (False, True),  # a last assistant turn is continued in any case
}
_COMPLETION_NEUTRAL: dict[str, tuple[Any, ...]] = _NEUTRAL | {
    "logprobs": (),
    "best_of": (1,),
    "echo": (False,),
    "suffix": ("",),
}


def chat(body: bytes, request_id: str) -> Asked:
    """Parse the body of /v1/chat/completions. Raises InvalidRequest."""
    asked = decode(body, ChatBody)
    _refuse_unsupported(asked, _CHAT_NEUTRAL)
    if not asked.messages:
        raise InvalidRequest("messages must hold at least one message", param="messages")
    options = options_of(asked.chat_template_kwargs, asked.reasoning_effort)
    prompt = Messages(tuple(_message(index, message) for index, message in enumerate(asked.messages)), options)
    limit = asked.max_tokens if asked.max_completion_tokens is None else asked.max_completion_tokens
    return _asked(asked, request_id, prompt, limit)


def completion(body: bytes, request_id: str) -> Asked:
    """Parse the body of /v1/completions. Raises InvalidRequest."""
    asked = decode(body, CompletionBody)
    _refuse_unsupported(asked, _COMPLETION_NEUTRAL)
    limit = COMPLETION_TOKENS if asked.max_tokens is None else asked.max_tokens
    return _asked(asked, request_id, _prompt(asked.prompt), limit)


def _asked(body: _Body, request_id: str, prompt: Prompt, max_tokens: int | None) -> Asked:
    stream = bool(body.stream)
    if body.stream_options is not None and not stream:
        raise InvalidRequest("stream_options is only allowed when stream is true", param="stream_options")
    preset(body.preset)  # refused here, where it is unknown
    request = GenerateRequest(
        id=request_id,
        model=body.model,
        prompt=prompt,
        sampling=Sampling(
            temperature=body.temperature,
            top_p=body.top_p,
            top_k=0 if body.top_k == -1 else body.top_k,
            seed=body.seed,
        ),
        preset=body.preset,
        max_tokens=max_tokens,
        stop=_stops(body.stop),
        sliding=body.context_overflow == "slide",
        keep_alive_s=body.keep_alive,
        priority=body.priority or 0,
    )
    usage = body.stream_options is not None and bool(body.stream_options.include_usage)
    return Asked(request, stream, usage)


def _refuse_unsupported(body: _Body, neutral: dict[str, tuple[Any, ...]]) -> None:
    for name, values in neutral.items():
        given = getattr(body, name)
        if given is not None and given not in values:
            raise InvalidRequest(f"{name} is not supported yet", hint=f"leave {name} out", param=name)


def neutral_values(body: type[_Body]) -> dict[str, tuple[Any, ...]]:
    """The fields that are not supported yet, and what they may hold besides null."""
    return _CHAT_NEUTRAL if body is ChatBody else _COMPLETION_NEUTRAL


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
        if len(ids) < len(prompt) or not all(0 <= item < 2**31 for item in ids):
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
