"""What is answered: the event stream of one request.

    Progress* Started (Progress | TextDelta)* ChoiceDone Finished      the whole answer
    …                                                    Failed        whatever dies in between

Every accepted request ends in exactly one `Finished` or `Failed`. Every delta carries its choice.
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
    completion_tokens: int
    cached_tokens: int = 0


class Timings(msgspec.Struct, frozen=True):
    """Seconds, on the worker's monotonic clock."""

    queue_s: float  # accepted -> first prefill step
    prefill_s: float  # first prefill step -> first token
    decode_s: float  # first token -> last token
    total_s: float  # accepted -> last token

    @property
    def ttft_s(self) -> float:
        return self.queue_s + self.prefill_s


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


class TextDelta(msgspec.Struct, frozen=True, tag="text"):
    """A piece of the answer: never part of a character, never part of a stop string."""

    text: str
    choice: int = 0


class ChoiceDone(msgspec.Struct, frozen=True, tag="choice_done"):
    reason: FinishReason
    choice: int = 0


class Finished(msgspec.Struct, frozen=True, tag="finished"):
    usage: Usage
    timings: Timings


class Failed(msgspec.Struct, frozen=True, tag="failed"):
    error: ErrorInfo


Event = Progress | Started | TextDelta | ChoiceDone | Finished | Failed
