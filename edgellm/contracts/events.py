"""What is answered: the event stream of one request.

    Progress* Started (Progress | ReasoningDelta | TextDelta | Slid | ChoiceDone)* Finished     the whole answer
    …                                                                      Failed       whatever dies in between

Every accepted request ends in exactly one `Finished` or `Failed`. Every delta carries its choice; each choice ends in
one `ChoiceDone`. A choice's deltas, joined, are its whole text, however they were cut.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from edgellm.errors import ErrorInfo

FinishReason = Literal["stop", "length"]
Stage = Literal["load", "queue", "prefill"]


class Usage(msgspec.Struct, frozen=True):
    """Token counts. `prompt_tokens` is the whole prompt, also where part of it was cached."""

    prompt_tokens: int
    completion_tokens: int  # over all choices
    cached_tokens: int = 0


class Timings(msgspec.Struct, frozen=True):
    """Seconds, on the worker's monotonic clock."""

    queue_s: float  # accepted -> first prefill step
    prefill_s: float  # first prefill step -> first token
    decode_s: float  # first token -> last token
    total_s: float  # accepted -> last token
    drafted: int = 0  # tokens guessed ahead
    accepted: int = 0  # of these, how many the model would have written itself

    @property
    def ttft_s(self) -> float:
        return self.queue_s + self.prefill_s


def figures(usage: Usage, timings: Timings, choices: int = 1) -> dict[str, float | None]:
    """Seconds, and the rates people ask for. The first token of a choice belongs to the prefill, hence the minus."""
    prompt = usage.prompt_tokens - usage.cached_tokens
    decoded = usage.completion_tokens - choices
    return {
        "queue_s": round(timings.queue_s, 6),
        "prefill_s": round(timings.prefill_s, 6),
        "decode_s": round(timings.decode_s, 6),
        "total_s": round(timings.total_s, 6),
        "ttft_s": round(timings.ttft_s, 6),
        "prompt_tokens_per_s": round(prompt / timings.prefill_s, 2) if timings.prefill_s > 0 else None,
        "drafted": timings.drafted,
        "accepted": timings.accepted,
        "tokens_per_s": round(decoded / timings.decode_s, 2) if decoded > 0 and timings.decode_s > 0 else None,
    }


class Progress(msgspec.Struct, frozen=True, tag="progress"):
    """Work done before text comes: fraction 0..1 of loading, of prefill; queue counts requests ahead in `total`."""

    stage: Stage
    done: float
    total: float = 1.0


class Started(msgspec.Struct, frozen=True, tag="started"):
    """The prompt is tokenised and its first step is about to run."""

    prompt_tokens: int
    cached_tokens: int
    seed: int


class Alternative(msgspec.Struct, frozen=True, array_like=True):
    """A token that could have stood here, and ln of its probability before any sampler."""

    token: int
    raw: bytes  # of its text; a control token's name
    logprob: float


class TokenInfo(msgspec.Struct, frozen=True, array_like=True):
    """A token that was chosen, ln of its probability before any sampler, and the likeliest ones in its place."""

    token: int
    raw: bytes
    logprob: float
    top: tuple[Alternative, ...] = ()


class TextDelta(msgspec.Struct, frozen=True, tag="text", omit_defaults=True):
    """A piece of the answer: never part of a character, never part of a stop string.

    `tokens`, where log probabilities were asked for, are those drawn since the last delta: text that is held back may
    come later than its tokens.
    """

    text: str
    choice: int = 0
    tokens: tuple[TokenInfo, ...] = ()


class ReasoningDelta(msgspec.Struct, frozen=True, tag="reasoning", omit_defaults=True):
    """A piece of what the model thinks before it answers; otherwise like TextDelta."""

    text: str
    choice: int = 0
    tokens: tuple[TokenInfo, ...] = ()


class Slid(msgspec.Struct, frozen=True, tag="slid", omit_defaults=True):
    """The context was full, and its `dropped` oldest tokens (after the first ones) were forgotten, as was allowed."""

    dropped: int
    choice: int = 0


class ChoiceDone(msgspec.Struct, frozen=True, tag="choice_done"):
    """No more text comes for this choice."""

    reason: FinishReason
    choice: int = 0


class Embedded(msgspec.Struct, frozen=True, tag="embedded"):
    """The vectors of a request for embeddings, each of length one: float32, little-endian, one text after the other."""

    vectors: bytes
    dimensions: int


class Finished(msgspec.Struct, frozen=True, tag="finished"):
    usage: Usage
    timings: Timings


class Failed(msgspec.Struct, frozen=True, tag="failed"):
    error: ErrorInfo


Event = Progress | Started | ReasoningDelta | TextDelta | Slid | ChoiceDone | Embedded | Finished | Failed
