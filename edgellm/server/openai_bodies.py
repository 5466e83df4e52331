"""OpenAI's request bodies: every field that is known, its type and its range."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from edgellm.contracts.ranges import MOST, Count, LookBack, Repeat, Token
from edgellm.contracts.request import Role
from edgellm.server.sampling_fields import Alternatives, Breakers, Choices, SamplingFields
from edgellm.server.template_options import Effort

STOPS = 16  # stop strings of one request
STOP_CHARACTERS = 1000  # of each
ROLES: dict[str, Role] = {
    "system": "system",
    "developer": "system",  # OpenAI's newer name
    "user": "user",
    "assistant": "assistant",
    "tool": "tool",
}
ALIASES = {  # names that other servers have for the same
    "repetition_penalty": "repeat_penalty",
    "dry_penalty_last_n": "dry_last_n",
    "dry_sequence_breakers": "dry_breakers",
}

_Stop = Annotated[str, Meta(min_length=1, max_length=STOP_CHARACTERS)]


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


class Body(SamplingFields, kw_only=True):
    """What both endpoints take, then what both refuse unless it is neutral."""

    model: Annotated[str, Meta(min_length=1, max_length=256)]
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    temperature: Annotated[float, Meta(ge=0, le=2)] | None = None
    top_k: Annotated[int, Meta(ge=-1, le=MOST)] | None = None  # -1: all, as other local servers have it
    seed: Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)] | None = None
    n: Choices | None = None
    repetition_penalty: Repeat | None = None  # vLLM's name of repeat_penalty
    dry_penalty_last_n: LookBack | None = None  # llama.cpp's names of dry_last_n and dry_breakers
    dry_sequence_breakers: Breakers | None = None
    stop: _Stop | list[_Stop] | None = None
    max_tokens: Count | None = None
    keep_alive: float | None = None  # seconds
    priority: Annotated[int, Meta(ge=-1000, le=1000)] | None = None  # lower is served first, as in vLLM; 0 is normal
    preset: str | None = None  # sampling for a kind of task
    context_overflow: Literal["error", "slide"] | None = None  # what to do with what does not fit; error if not said
    drafts: bool | None = None  # false: no guessing ahead, which never changes the text

    min_tokens: int | None = None
    ignore_eos: bool | None = None
    stop_token_ids: list[int] | None = None
    response_format: Any = None
    grammar: Any = None
    guided_json: Any = None
    guided_regex: Any = None
    guided_choice: Any = None
    guided_grammar: Any = None
    structured_outputs: Any = None
    json_schema: Any = None  # llama-server's
    regex: Any = None  # SGLang's, and what follows
    ebnf: Any = None
    structural_tag: Any = None


class ChatBody(Body, kw_only=True):
    messages: list[ChatMessage]
    max_completion_tokens: Count | None = None
    reasoning_effort: Effort | None = None
    chat_template_kwargs: dict[str, bool | int | float | str | None] | None = None
    logprobs: bool | None = None
    top_logprobs: Alternatives | None = None

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


class CompletionBody(Body, kw_only=True):
    prompt: str | list[str | int | list[Token]]
    logprobs: Alternatives | None = None
    best_of: Choices | None = None

    echo: bool | None = None
    suffix: str | None = None


# Values besides null that change nothing. A field that is not here is refused whenever it is given.
_NEUTRAL: dict[str, tuple[Any, ...]] = {
    "min_tokens": (0,),
    "ignore_eos": (False,),
    "stop_token_ids": ([],),
    "response_format": ({"type": "text"},),
    "grammar": ("",),
    "guided_json": (),
    "guided_regex": (),
    "guided_choice": (),
    "guided_grammar": (),
    "structured_outputs": (),
    "json_schema": (),
    "regex": (),
    "ebnf": (),
    "structural_tag": (),
}
_CHAT_NEUTRAL: dict[str, tuple[Any, ...]] = _NEUTRAL | {
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
    "echo": (False,),
    "suffix": ("",),
}


def neutral_values(body: type[Body]) -> dict[str, tuple[Any, ...]]:
    """The fields that are not supported yet, and what they may hold besides null."""
    return _CHAT_NEUTRAL if body is ChatBody else _COMPLETION_NEUTRAL
