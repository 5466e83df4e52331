"""TokenRunner: what an engine makes of a loaded model. It executes steps of tokens and owns KV memory.

It knows nothing of requests, text, HTTP or fairness. One scheduler drives every engine through it. All of it runs in a
worker process, called from one thread.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, Literal, Protocol

import msgspec


class SampleSpec(msgspec.Struct, frozen=True):
    """How to choose a token, fully resolved: `request.Sampling` with every value said. Constant for a choice.

    The chain only takes tokens away and weighs them anew; what it remembers is in the row (`history`, `carry`). So the
    token at a position follows from the logits, the tokens before it, the seed, the choice and the position alone.
    """

    temperature: float = 1.0  # 0 is argmax
    top_k: int = 0  # 0 keeps all
    top_p: float = 1.0
    seed: int = 0
    choice: int = 0
    min_p: float = 0.0
    typical_p: float = 1.0
    logit_bias: dict[int, float] = {}
    repeat_penalty: float = 1.0
    repeat_last_n: int = 64  # -1: all of `history`
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    dry_multiplier: float = 0.0
    dry_base: float = 1.75
    dry_allowed_length: int = 2
    dry_last_n: int = -1
    dry_breakers: frozenset[int] = frozenset()  # tokens that end a repetition
    xtc_probability: float = 0.0
    xtc_threshold: float = 0.1
    mirostat: int = 0  # 2 or off
    mirostat_tau: float = 5.0
    mirostat_eta: float = 0.1
    logprobs: int | None = None  # alternatives to name; None: none, and no log probability either

    @property
    def looks_back(self) -> bool:
        """Whether rows must bring their `history`."""
        return (
            self.repeat_penalty != 1.0
            or self.presence_penalty != 0.0
            or self.frequency_penalty != 0.0
            or self.dry_multiplier != 0.0
        )


PREVIOUS: Final = -1  # a row's only token: what the step before, still in flight, draws for the sequence


class Row(msgspec.Struct, frozen=True):
    """One sequence's part of a step: tokens to append at `start`, and whether the last one's logits are sampled.

    start       equals the sequence's length so far, rows in flight included (but none may have a draft); positions
                continue exactly
    tokens      one for decode, a chunk for prefill. Or PREVIOUS alone, where the latest step is in flight and has a row
                of the sequence that is sampled and brings no draft: so a sequence goes on before its token is known.
    sample      None: nothing is drawn (a prefill chunk that is not the last)
    position    index of the token to draw among the generated ones; keys the random number
    draft       guesses of the tokens to follow, computed along: the runner draws a token, and while that equals the
                next guess, one more. What was computed beyond the last equal guess is dropped by the runner.
    history     the sequence's tokens up to and including `tokens`, where `sample.looks_back`; not kept by the runner
    carry       what the chain handed back with the token before (`Result.carry`); 0 at first
    """

    sequence: int
    start: int
    tokens: Sequence[int]
    sample: SampleSpec | None = None
    position: int = 0
    draft: Sequence[int] = ()
    history: Sequence[int] = ()
    carry: float = 0.0


RowError = Literal["nan", "no_room"]


class Logprob(msgspec.Struct, frozen=True):
    """ln of a chosen token's probability in the raw logits, and the likeliest tokens there, likeliest first."""

    chosen: float
    top: tuple[tuple[int, float], ...] = ()


class Result(msgspec.Struct, frozen=True):
    """What became of one row, in the order of the rows.

    tokens      drawn: none without `sample`, else one more than the drafts that came true; the sequence is now
                `start + len(row.tokens) + len(tokens) - 1` long
    logprobs    of each token, where the spec asks for them
    carry       for the next row of the sequence
    no_room     the step did not run for this row; its KV is as before. Free something and submit it again.
                Steps that were submitted before this was known do not run for the sequence either: they say the same.
    nan         logits were not finite; the sequence's KV must not be reused. So says a row that took the token.
    """

    tokens: tuple[int, ...] = ()
    error: RowError | None = None
    logprobs: tuple[Logprob, ...] = ()
    carry: float = 0.0


class RunnerInfo(msgspec.Struct, frozen=True):
    """What a loaded runner can take."""

    engine: str
    context: int  # longest sequence, tokens
    capacity: int  # KV units over all sequences
    max_sequences: int
    batch_tokens: int
    pipeline_depth: int = 1  # steps that may be in flight: submitted and not collected
    prefill_tile: int = 1  # steps with fewer tokens attend more slowly; worth filling up over a long context
    max_outputs: int = 0  # tokens with logits in one step: sampled rows and their drafts; 0: one for each sequence
    draft_tokens: int = 0  # longest draft of a row; 0: drafts are not verified (recurrent states cannot step back)
    # While no more KV was used, a row's logits are the same to the last bit, whatever else is in the step.
    exact_cells: int = 0
    # And its sequences lie in the pool in order: nothing may be freed below what grows, or it must be laid out anew.
    keeps_order: bool = False
    # What it can do of a request: fields of Sampling, and "logprobs". The rest is refused, never passed over.
    samplers: frozenset[str] = frozenset({"temperature", "top_k", "top_p", "seed"})


class Parked(Protocol):
    """A copy of a sequence's KV, held by the runner outside its pool. Letting go of it frees it."""

    @property
    def length(self) -> int:
        """Tokens."""
        ...

    @property
    def nbytes(self) -> int: ...


class TokenRunner(Protocol):
    """Executes steps and owns the KV of numbered sequences (0 <= sequence < max_sequences).

    Steps run in the order of their submission. A step is in flight until it is collected; up to `info.pipeline_depth`
    may be, and they are collected first to last. With a depth of 2 the next step is made ready while one runs. Until
    their steps are collected, the sequences of rows in flight are left alone: `fork` (from or to), `truncate`, `free`,
    `reusable`, `park` and `unpark` are for other sequences only, and take effect after what is in flight. A step that
    raises is over, and the others are still in flight; what they did to sequences of its rows is unknown.
    """

    @property
    def info(self) -> RunnerInfo: ...

    def submit(self, rows: Sequence[Row]) -> Any:
        """Start a step; returns a ticket for `collect`. Total tokens <= batch_tokens; each sequence at most once.

        Does not wait for steps in flight where the engine can help it.
        """
        ...

    def collect(self, ticket: Any) -> list[Result]:
        """Wait for the first step in flight, with the GIL released, and return one result per row."""
        ...

    def fork(self, source: int, target: int, length: int) -> None:
        """Make `target` (empty before) share the first `length` tokens of `source`."""
        ...

    def truncate(self, sequence: int, length: int) -> None:
        """Drop what lies at and beyond position `length`. Only to a length that `reusable` allows."""
        ...

    def free(self, sequence: int) -> None:
        """Drop a sequence; freeing an empty one is fine."""
        ...

    def reusable(self, sequence: int, length: int) -> int:
        """The longest prefix <= `length` at which fork or truncate is exact (sliding windows forget; maybe 0)."""
        ...

    def park(self, sequence: int) -> Parked:
        """Copy a sequence's KV out of the pool. The sequence stays as it is."""
        ...

    def unpark(self, parked: Parked, sequence: int) -> None:
        """Bring a copy back into `sequence` (empty before), in cells of its own. The copy stays as it is.

        Raises ValueError when it is another runner's or there is no room for it.
        """
        ...

    def close(self) -> None: ...
