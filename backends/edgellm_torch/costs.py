"""What a GGUF model costs the torch engine in memory, from its header alone. No torch here.

Weights and KV are exact. Scratch is that of the reference kernels, which dequantise a tile of a matrix at a time.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

from edgellm_kernels.kv_kinds import KV_KINDS, kv_bytes

from edgellm.contracts.engine import CostModel, KVCost, KVKind, ModelFile, Placement
from edgellm.errors import InvalidRequest
from edgellm_torch.architectures import decoder
from edgellm_torch.config import Activation, Attention, Decoder, Experts, Latent, Layer, tensors
from edgellm_torch.pool import BLOCK, blocks_for

MIB: Final = 1024 * 1024
F32_BYTES: Final = 4
KV_TYPES: Final[tuple[str, ...]] = tuple(KV_KINDS)

# What a block of 256 (or a whole row, where a type has smaller ones) grows by when it is repacked into planes.
GROWTH: Final = {"Q3_K": (110, 114), "Q4_K": (144, 148), "Q5_K": (176, 180), "IQ4_XS": (136, 138)}

# Blocks for each sequence beyond those of its tokens: its last one is not full, and one that it shares is copied before
# it writes there; behind a window the first one is not full either.
SPARE: Final = 1
SPARE_SLIDING: Final = 2

DRAFT_OUTPUTS: Final = 32  # rows of a step with logits, beyond one for each sequence: guesses to be checked

# Numbers of a gated network's width that are held at once: gate, up, and what exponentials are made of.
ACTIVATED: Final[dict[Activation, int]] = {"silu": 7, "gelu": 9}
# Attention of the reference: values before they are joined, keys and values in single precision, scores and what is
# made of them. No more than this, however long the text.
ATTENTION: Final = 32 * MIB

# Measured on Linux with the CPU build: an interpreter with torch, numpy, the tokenizer's library and the templates, and
# what loading and dequantising leave with the allocator; before any model. Of the libraries' files the system maps the
# neighbours of a page too where it has them cached in one piece, and takes all of them back as it likes: 85 to 170 MiB.
LIBRARIES: Final = 110 * MIB
PROCESS: Final = LIBRARIES + 140 * MIB
WORD: Final = 200  # bytes per vocabulary entry, measured
MERGE: Final = 250  # more for each, where a vocabulary has merges: about one for each entry


def cost_model(model: ModelFile, kv_type: str) -> CostModel:
    """Weights as planes, KV of `kv_type` by kind of layer, scratch for a step.

    Raises InvalidRequest for a type that is not one of KV_TYPES, LoadFailed for a model that this engine does not run.
    """
    if kv_type not in KV_TYPES:
        raise InvalidRequest(
            f"the PyTorch engine has no KV type {kv_type}", hint="one of " + ", ".join(KV_TYPES), param="kv_type"
        )
    parts = decoder(model)
    return CostModel(
        weights=weights(model),
        kv=_kv(parts, kv_type),
        process=process(model, parts.vocabulary),
        activations=F32_BYTES * max(activations(layer, parts.width) for layer in parts.layers),
        scratch=ATTENTION,
        logits=F32_BYTES * parts.vocabulary,
        draft_logits=DRAFT_OUTPUTS,
        block=BLOCK,
    )


def weights(model: ModelFile) -> int:
    """Bytes of all tensors as planes."""
    return sum(_held(tensor.type, tensor.nbytes) for tensor in model.tensors)


def process(model: ModelFile, vocabulary: int) -> int:
    """Bytes of interpreter, libraries and tokenizer."""
    merges = model.metadata.get("tokenizer.ggml.model") == "gpt2"
    return PROCESS + vocabulary * (WORD + MERGE * merges)


def max_outputs(placement: Placement) -> int:
    """Rows of a step that may have logits."""
    return min(placement.batch_tokens, placement.max_sequences + DRAFT_OUTPUTS)


def group_blocks(parts: Decoder, capacity: int, sequences: int, batch_tokens: int) -> list[int]:
    """Blocks of the pool for each group of layers, in the order of `parts.windows`."""
    found = []
    for window in parts.windows:
        tokens = min(capacity, window * sequences + batch_tokens) if window else capacity
        found.append(blocks_for(tokens) + sequences * (SPARE_SLIDING if window else SPARE))
    return found


class Loads(NamedTuple):
    """What the layers of a model take where they are computed, bytes.

    `ends`: the embedding, the output; `shared`: what both name, which one device for all holds once.
    """

    weights: tuple[int, ...]
    kv: tuple[int, ...]  # per token
    ends: tuple[int, int]
    shared: int
    scratch: int  # of a step, on every device

    def layers(self, tokens: int) -> list[int]:
        """Of each layer, with room for `tokens`; the embedding lies with the first, the output with the last."""
        found = [weights + tokens * kv for weights, kv in zip(self.weights, self.kv, strict=True)]
        found[0] += self.ends[0]
        found[-1] += self.ends[1]
        return found

    def of(self, part: range, tokens: int) -> int:
        """Of some layers."""
        whole = len(part) == len(self.weights)
        return sum(self.layers(tokens)[part.start : part.stop]) - (self.shared if whole else 0)


def loads(model: ModelFile, parts: Decoder, placement: Placement) -> Loads:
    """Windows are taken for what they would hold at most: rather one device too many."""
    sizes = {tensor.name: _held(tensor.type, tensor.nbytes) for tensor in model.tensors}

    def size(part: Any) -> int:
        return sum(sizes[name] for name in tensors(part))

    needs = cost_model(model, placement.kv_type).needs(
        placement.capacity, placement.max_sequences, placement.batch_tokens
    )
    return Loads(
        tuple(size(layer) for layer in parts.layers),
        tuple(kept(layer.attention, placement.kv_type) for layer in parts.layers),
        (size(parts.embedding), size((parts.norm, parts.output))),
        sum(sizes[name] for name in tensors(parts.embedding) & tensors(parts.output)),
        needs.activations,
    )


def _held(kind: str, nbytes: int) -> int:
    before, after = GROWTH.get(kind, (1, 1))
    return nbytes * after // before


def _kv(parts: Decoder, kv_type: str) -> tuple[KVCost, ...]:
    """The layers' memories added up by window."""
    found = []
    for window in parts.windows:
        layers = [layer.attention for layer in parts.layers if layer.attention.window == window]
        per_token = sum(kept(attention, kv_type) for attention in layers)
        kind: KVKind = "sliding" if window else "latent" if isinstance(layers[0], Latent) else "full"
        spare = SPARE_SLIDING if window else SPARE
        found.append(KVCost(kind, len(layers), per_token, spare * BLOCK * per_token, window))
    return tuple(found)


def kept(attention: Attention | Latent, kv_type: str) -> int:
    """Bytes that one layer keeps of a token."""
    if isinstance(attention, Latent):
        return kv_bytes(kv_type, 1, attention.kv_numbers, attention.rank, shares_v=True)
    return kv_bytes(kv_type, attention.kv_heads, attention.key_size, attention.value_size)


def activations(layer: Layer, width: int) -> int:
    """Numbers held at once for one token of a step, in its attention or its network, whichever has more."""
    attention, feed = layer.attention, layer.feed
    if isinstance(attention, Latent):
        queries, values = attention.heads * attention.kv_numbers, attention.heads * attention.rank
    else:
        queries, values = attention.heads * attention.key_size, attention.heads * attention.value_size
    # Queries as they were made, turned, and in their tiles; what they find in tiles, in one piece and in rows.
    mixed = 4 * queries + 3 * values + 3 * attention.kv_numbers
    if isinstance(feed, Experts):
        wide = max(feed.gate.rows, feed.shared.gate.rows if feed.shared else 0)
        fed = ACTIVATED[feed.activation] * wide + 2 * feed.used * width
    else:
        fed = ACTIVATED[feed.activation] * feed.gate.rows
    return 4 * width + max(mixed, fed)
