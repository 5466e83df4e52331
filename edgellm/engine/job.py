"""Job: one answer being made, as the scheduler sees it. Numbers only, no text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from edgellm.contracts.runner import SampleSpec

if TYPE_CHECKING:
    from edgellm.engine.speculation import Guesses


class Job:
    """A prompt, what was generated so far, and how much of both is in the KV cache.

    tokens      prompt then generated tokens
    generated   how many were drawn; keys the random numbers, so it counts on when old tokens slide out
    computed    how many of `tokens`, from the first, are in the KV of `sequence`
    sequence    None while waiting
    cached      prompt tokens that were in the cache when it started
    key         only jobs of the same key share cached prefixes
    """

    __slots__ = (
        "accepted",
        "arrived",
        "cached",
        "carry",
        "computed",
        "drafted",
        "drafts",
        "first_step",
        "first_token",
        "generated",
        "guesses",
        "id",
        "key",
        "last_token",
        "max_tokens",
        "priority",
        "prompt_length",
        "sample",
        "sequence",
        "suspensions",
        "tokens",
    )

    def __init__(
        self,
        id: str,
        prompt: Sequence[int],
        sample: SampleSpec,
        max_tokens: int,
        *,
        priority: int = 0,
        arrived: float = 0.0,
        key: str = "",
        drafts: bool = True,
    ) -> None:
        self.id = id
        self.tokens = list(prompt)
        self.prompt_length = len(self.tokens)
        self.sample = sample
        self.max_tokens = max_tokens
        self.priority = priority
        self.arrived = arrived
        self.first_step: float | None = None
        self.first_token: float | None = None
        self.last_token: float | None = None
        self.key = key
        self.cached = 0
        self.computed = 0
        self.sequence: int | None = None
        self.suspensions = 0
        self.generated = 0
        self.carry = 0.0  # of the sampler chain, from token to token
        self.drafts = drafts  # may guess ahead
        self.guesses: Guesses | None = None  # the speculator's own
        self.drafted = 0
        self.accepted = 0

    @property
    def pending(self) -> int:
        """Tokens still to compute before the next one can be drawn; 1 when decoding."""
        return len(self.tokens) - self.computed

    @property
    def remaining(self) -> int:
        """Tokens it may still generate."""
        return self.max_tokens - self.generated

    @property
    def decoding(self) -> bool:
        """Only its newest token is missing from the KV: one row draws the next."""
        return self.pending == 1 and self.generated > 0

    def record(self, token: int, now: float) -> None:
        """Take the token just drawn."""
        self.tokens.append(token)
        self.generated += 1
        if self.first_token is None:
            self.first_token = now
        self.last_token = now
