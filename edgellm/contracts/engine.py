"""What an engine implements.

An engine executes token batches and owns KV memory; it knows nothing of requests, text, HTTP or fairness. One scheduler
drives every engine through `TokenRunner`. All of it runs in a worker process, called from one thread.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final, Literal, Protocol

import msgspec

ENGINE_STATE = "EDGELLM_ENGINE_STATE"  # environment variable: a folder where engines may keep small files between runs


class Available(msgspec.Struct, frozen=True):
    """An engine that can run here, and with what."""

    version: str
    detail: str = ""
    hint: str = ""  # what would make it run better here


class Unavailable(msgspec.Struct, frozen=True):
    """An engine that cannot run here, why, and what mends it."""

    reason: str
    hint: str


class TensorInfo(msgspec.Struct, frozen=True):
    """One tensor of a model. `offset` is absolute in its file; `shape` in the file's order (fastest first)."""

    name: str
    type: str  # "F32", "Q4_K", …
    shape: tuple[int, ...]
    nbytes: int
    offset: int
    file: int = 0  # which of the model's files: 0 is `path`, 1 the first of `more`


class ModelFile(msgspec.Struct, frozen=True):
    """A model on disk, read and checked by formats/. Small metadata only: the vocabulary stays in the file."""

    path: Path
    size: int  # bytes, over all files
    architecture: str
    metadata: dict[str, Any]  # scalars and short arrays, keyed as in the file
    tensors: tuple[TensorInfo, ...]
    more: tuple[Path, ...] = ()  # the further files of a model that is split


class Placement(msgspec.Struct, frozen=True, kw_only=True):
    """Where a model goes and how much room it gets. Decided by placement/, obeyed by the engine."""

    context: int  # longest sequence, tokens
    capacity: int  # KV room over all sequences, tokens
    max_sequences: int  # sequences that may hold KV at once
    batch_tokens: int  # most tokens of one step
    threads: int  # for decode
    threads_batch: int  # for prefill
    gpu_layers: int = 0
    use_mmap: bool = True
    use_mlock: bool = False
    kv_type: str = "f16"  # how keys and values are stored, one of the engine's `kv_types`
    exact: bool = False  # text must not depend, to the last bit, on what else is computed or was cached
    spills: bool = False  # the weights do not fit in memory: map them, and make no copy of any
    memory: int = 0  # bytes of RAM that the engine may take in all, its process included; 0: unknown


DraftMode = Literal["auto", "always", "off"]
KVKind = Literal["full", "sliding", "latent", "recurrent"]


class KVCost(msgspec.Struct, frozen=True):
    """What the layers of one kind keep of a text; bytes over all of them.

    full        every token
    sliding     the last `window` tokens of each sequence, and those of a step
    latent      every token, compressed (multi-head latent attention)
    recurrent   a state per sequence, however long it is
    """

    kind: KVKind
    layers: int
    per_token: int = 0
    per_sequence: int = 0
    window: int = 0  # tokens


class Needs(msgspec.Struct, frozen=True):
    """The memory of one loaded model in a given room, by purpose. Bytes."""

    weights: int
    kv: dict[KVKind, int]
    activations: int  # scratch of a step, rows of logits
    process: int  # interpreter, libraries, vocabulary

    @property
    def kv_total(self) -> int:
        return sum(self.kv.values())

    @property
    def total(self) -> int:
        return self.weights + self.kv_total + self.activations + self.process


class CostModel(msgspec.Struct, frozen=True, kw_only=True):
    """What a model costs in memory, from its header alone. Bytes, but for the last three: rows, tokens, tokens."""

    weights: int
    kv: tuple[KVCost, ...] = ()
    process: int = 0
    activations: int = 0  # scratch of the layers, per token of a step
    scratch: int = 0  # of the layers, however large the step
    state: int = 0  # the same per sequence, where layers are recurrent
    mask: int = 0  # the same for each token of a step and each of KV room that it may see
    logits: int = 0  # one sequence's: once as a result, once in scratch when the layers' is free again
    draft_logits: int = 0  # rows of logits that a step may have beyond one for each sequence
    step_tokens: int = 1 << 20  # most tokens computed at once; larger steps are cut
    block: int = 1  # KV room is given out in multiples of this

    def needs(self, capacity: int, sequences: int, batch_tokens: int) -> Needs:
        """With room for `capacity` tokens of KV over `sequences`, in steps of at most `batch_tokens`."""
        step = min(batch_tokens, self.step_tokens)
        held: dict[KVKind, int] = {}
        seen = 0
        for cost in self.kv:
            cells = self._cells(cost, capacity, sequences, step)
            held[cost.kind] = held.get(cost.kind, 0) + cost.per_token * cells + cost.per_sequence * sequences
            seen += cells
        layers = self.scratch + step * (self.activations + self.mask * seen) + self.state * sequences
        logits = self.logits * min(max(step, sequences), sequences + self.draft_logits)
        return Needs(self.weights, held, max(layers, logits) + logits, self.process)

    def _cells(self, cost: KVCost, capacity: int, sequences: int, step: int) -> int:
        """Tokens that layers of a kind hold at most."""
        if not cost.per_token:
            return 0
        wanted = min(capacity, cost.window * sequences + step) if cost.window else capacity
        return -(-wanted // self.block) * self.block


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


class Tokenizer(Protocol):
    """Text to token ids and back, built from the model file's own vocabulary.

    adds_bos            the model expects `bos` first; the caller adds it once
    end_of_generation   ids that end an answer and are never shown
    special_texts       the texts of control tokens: dangerous when they stand in user content
    chat_template       the Jinja source from the file, if there is one
    """

    @property
    def bos(self) -> int | None: ...
    @property
    def eos(self) -> int | None: ...
    @property
    def adds_bos(self) -> bool: ...
    @property
    def end_of_generation(self) -> frozenset[int]: ...
    @property
    def special_texts(self) -> tuple[str, ...]: ...
    @property
    def vocabulary_size(self) -> int: ...
    @property
    def chat_template(self) -> str | None: ...

    def encode(self, text: str, *, special: bool) -> list[int]:
        """Ids of `text`; BOS is never added. `special`: texts of control tokens become those tokens."""
        ...

    def token_text(self, token: int) -> str:
        """The text of any token, control tokens included (templates need bos_token and eos_token)."""
        ...

    def token_bytes(self, token: int) -> bytes:
        """What a generated token adds to the answer: raw bytes, maybe part of a character; b"" for control tokens."""
        ...


class EnginePlugin(Protocol):
    """The whole surface of an engine. The module that holds it imports nothing heavy.

    It may have a `title`, the engine's name as people write it, and `requires`, modules that it cannot do without: they
    are looked for, but not imported, before it is chosen.
    """

    @property
    def name(self) -> str:
        """The name of its entry point: a worker finds it by that."""
        ...

    def probe(self) -> Available | Unavailable:
        """Can this engine run here? Quick; imports what it must inside."""
        ...

    def supports(self, model: ModelFile) -> str | None:
        """None when this engine can run `model`, else the reason why not."""
        ...

    @property
    def kv_types(self) -> tuple[str, ...]:
        """The ways it can store keys and values ("f16", "q8_0", …), the one it recommends first."""
        ...

    def cost_model(self, model: ModelFile, kv_type: str) -> CostModel:
        """Memory needs from the header alone; imports no engine library. `kv_type` is one of `kv_types`."""
        ...

    def tokenizer(self, model: ModelFile) -> Tokenizer: ...

    def load(self, model: ModelFile, placement: Placement, progress: Callable[[float], None]) -> TokenRunner:
        """Load the weights, calling `progress` with 0..1. Raises LoadFailed with the engine's own words."""
        ...
