"""What an engine implements: `EnginePlugin`, and the data that it is asked with and answers in.

A worker calls `tokenizer` and `load`, which gives a `TokenRunner` (`runner.py`). All else is asked wherever a model is
chosen or planned for, and answered from the file's header alone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal, Protocol

import msgspec

from edgellm.contracts.runner import TokenRunner
from edgellm.errors import LoadFailed

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
    gpu_layers: int = 0  # layers that the user wants on GPUs; 0: none, or what an engine decides itself
    use_mmap: bool = True
    use_mlock: bool = False
    kv_type: str = "f16"  # how keys and values are stored, one of the engine's `kv_types`
    exact: bool = False  # text must not depend, to the last bit, on what else is computed or was cached
    spills: bool = False  # the weights do not fit in memory: map them, and make no copy of any
    memory: int = 0  # bytes of RAM that the engine may take in all, its process included; 0: unknown

    def check(self, engine: str, kv_types: Sequence[str]) -> None:
        """Raises LoadFailed for a room that makes no sense, or a KV type that `engine`, as people call it, has not."""
        if self.kv_type not in kv_types:
            raise LoadFailed(f"{engine} has no KV type {self.kv_type}", hint="one of " + ", ".join(kv_types))
        for name in ("context", "capacity", "max_sequences", "batch_tokens", "threads", "threads_batch"):
            if getattr(self, name) < 1:
                raise LoadFailed(f"{name} is {getattr(self, name)}; it must be at least 1")
        if self.batch_tokens < self.max_sequences:
            raise LoadFailed(
                f"batch_tokens is {self.batch_tokens}, less than one for each of {self.max_sequences} sequences",
                hint="raise batch_tokens, or lower max_sequences",
            )


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


class Tokenizer(Protocol):
    """Text to token ids and back, built from the model file's own vocabulary. Used from several threads.

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

    def fewest(self, text: str) -> int:
        """`encode` makes at least so many ids of `text`; much quicker to say. 0 where nothing is known."""
        ...

    def token_text(self, token: int) -> str:
        """The text of any token, control tokens included (templates need bos_token and eos_token)."""
        ...

    def token_bytes(self, token: int) -> bytes:
        """What a generated token adds to the answer: raw bytes, maybe part of a character; b"" for control tokens."""
        ...


def title_of(plugin: EnginePlugin) -> str:
    """What people call that engine; its `name` is for what they type."""
    return str(getattr(plugin, "title", plugin.name))


class EnginePlugin(Protocol):
    """The whole surface of an engine. The module that holds it imports nothing heavy. Used from several threads.

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

    def tokenizer(self, model: ModelFile) -> Tokenizer:
        """Called beside `load`, on another thread. Raises LoadFailed or BadModelFile for a vocabulary it cannot use."""
        ...

    def load(self, model: ModelFile, placement: Placement, progress: Callable[[float], None]) -> TokenRunner:
        """Load the weights, calling `progress` with 0..1. Raises LoadFailed with the engine's own words."""
        ...
