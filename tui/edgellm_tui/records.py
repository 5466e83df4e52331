"""What a conversation consists of, as it is shown and kept."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

import msgspec

from edgellm.contracts.events import FinishReason, Timings, Usage
from edgellm.contracts.request import Message
from edgellm.inert import label
from edgellm.units import seconds

# writing: the answer is coming, or its process died while it was. stopped: by the user. failed: `error` says why.
State = Literal["writing", "done", "stopped", "failed"]
_TITLE = 60


class Figures(msgspec.Struct, frozen=True, omit_defaults=True):
    """How an answer went. `first_s`: from asking to the first text, loading included, seconds."""

    first_s: float
    usage: Usage | None = None
    timings: Timings | None = None
    reason: FinishReason = "stop"
    where: str = "this device"

    def __str__(self) -> str:
        """The footer: "this device · 0.21 s · 24 tok/s · 212 + 96 (180 cached)"."""
        parts = [self.where, seconds(self.first_s)]
        if self.usage is not None and self.timings is not None:
            usage = self.usage
            if usage.completion_tokens > 1 and self.timings.decode_s > 0:
                parts.append(f"{(usage.completion_tokens - 1) / self.timings.decode_s:.0f} tok/s")
            cached = f" ({usage.cached_tokens} cached)" if usage.cached_tokens else ""
            parts.append(f"{usage.prompt_tokens} + {usage.completion_tokens}{cached}")
        if self.reason == "length":
            parts.append("cut at the token limit")
        return " · ".join(parts)


class Turn(msgspec.Struct, frozen=True, kw_only=True):
    """One message of a conversation. The last six fields are an answer's own."""

    id: int
    role: Literal["user", "assistant"]
    text: str
    created: float  # Unix time
    thought: str = ""
    thought_s: float = 0.0
    state: State = "done"
    model: str = ""
    figures: Figures | None = None
    error: str = ""


class Conversation(msgspec.Struct, frozen=True):
    """A conversation without its turns."""

    id: int
    title: str
    model: str
    updated: float  # Unix time


def title_of(text: str) -> str:
    """A conversation's name: the first line of its first question."""
    first = next((line for line in text.splitlines() if line.strip()), "")
    return label(first, _TITLE)


def dialogue(turns: Iterable[Turn]) -> tuple[Message, ...]:
    """What the model is told of a conversation that ends in a question.

    Of several tries at an answer the last one counts. A question that got no answer is left out once another follows:
    many templates insist that the roles take turns.
    """
    messages: list[Message] = []
    for turn in turns:
        if turn.role == "user":
            if messages and messages[-1].role == "user":
                messages.pop()
            messages.append(Message("user", turn.text))
        elif turn.text:
            if messages and messages[-1].role == "assistant":
                messages.pop()
            messages.append(Message("assistant", turn.text))
    return tuple(messages)
