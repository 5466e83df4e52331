"""What a decoder or an encoder is made of, as data: parts that name their tensors. An architecture's file puts them
together, the loader reads the tensors they name, model.py and encoder.py run them, costs.py and embedding_costs.py
count them. No torch here.

Sizes are in numbers; `rows` of a matrix are its outputs, `columns` its inputs.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal

import msgspec

Activation = Literal["silu", "gelu"]


class Linear(msgspec.Struct, frozen=True):
    """A matrix of a file, and a bias where there is one. `stack`: so many of them in one tensor (experts, heads)."""

    weight: str
    rows: int
    columns: int
    bias: str = ""
    stack: int = 0


class Norm(msgspec.Struct, frozen=True):
    """RMS normalisation over `size` numbers."""

    weight: str
    size: int
    epsilon: float


class LayerNorm(msgspec.Struct, frozen=True):
    """Normalisation to mean 0 and variance 1 over `size` numbers; `bias` "": none is added."""

    weight: str
    bias: str
    size: int
    epsilon: float


class Rope(msgspec.Struct, frozen=True, kw_only=True):
    """Rotary positions of the first `dims` numbers of each head (Su et al., "RoFormer", 2021).

    style       "interleaved": neighbours turn together; "neox": halves
    scaling     "linear" (Chen et al., 2023), "yarn" (Peng et al., 2023) by `factor` beyond `original_context`
    factors     divide the frequencies (Llama 3), one for each pair: a tensor
    """

    dims: int
    base: float = 10_000.0
    style: Literal["interleaved", "neox"] = "interleaved"
    scaling: Literal["none", "linear", "yarn"] = "none"
    factor: float = 1.0
    original_context: int = 0
    attention_factor: float = 1.0
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    factors: str = ""


class Attention(msgspec.Struct, frozen=True, kw_only=True):
    """Grouped-query attention. `window`: tokens that it looks back, the token itself included; 0: all.

    scale       of the scores; soft_cap: they are kept within it (Gemma 2)
    """

    heads: int
    kv_heads: int
    key_size: int
    value_size: int
    scale: float
    query: Linear
    key: Linear
    value: Linear
    output: Linear
    rope: Rope | None
    query_norm: Norm | None = None
    key_norm: Norm | None = None
    window: int = 0
    soft_cap: float = 0.0

    @property
    def kv_numbers(self) -> int:
        """Kept per token."""
        return self.kv_heads * (self.key_size + self.value_size)


class Latent(msgspec.Struct, frozen=True, kw_only=True):
    """Multi-head latent attention (DeepSeek-V2, 2024), absorbed: one compressed key for all heads, values a part of it.

    rank        of what is kept of keys and values; `rope_size` more numbers carry the position
    query_down  None where queries are not compressed
    up_keys     [heads, rank, plain]: lifts a head's query to the compressed key
    up_values   [heads, value, rank]: lowers what a head attended to
    """

    heads: int
    rank: int
    plain_size: int
    rope_size: int
    value_size: int
    scale: float
    query_down: Linear | None
    query_norm: Norm | None
    query: Linear
    key_down: Linear
    key_norm: Norm
    up_keys: Linear
    up_values: Linear
    output: Linear
    rope: Rope
    window: int = 0

    @property
    def kv_numbers(self) -> int:
        """Kept per token."""
        return self.rank + self.rope_size


class Gated(msgspec.Struct, frozen=True):
    """A gated feed-forward network (Shazeer, "GLU Variants Improve Transformer", 2020)."""

    gate: Linear
    up: Linear
    down: Linear
    activation: Activation = "silu"


class Experts(msgspec.Struct, frozen=True, kw_only=True):
    """Gated networks of which each token takes `used`, and one that every token takes, where there is one.

    The other fields are those of edgellm_kernels.routing.RouterSpec. `correction`: a tensor added to the scores for the
    choice alone.
    """

    router: Linear
    gate: Linear
    up: Linear
    down: Linear
    used: int
    activation: Activation = "silu"
    score: Literal["softmax", "sigmoid", "softmax_top"] = "softmax"
    renormalise: bool = True
    scale: float = 1.0
    groups: int = 1
    groups_used: int = 1
    correction: str = ""
    shared: Gated | None = None


class Layer(msgspec.Struct, frozen=True, kw_only=True):
    """x += post_norm(attention(norm(x))); the same with the feed-forward network. Some models have post-norms."""

    attention_norm: Norm
    attention: Attention | Latent
    attention_post_norm: Norm | None = None
    feed_norm: Norm
    feed: Gated | Experts
    feed_post_norm: Norm | None = None


class Decoder(msgspec.Struct, frozen=True, kw_only=True):
    """A whole model. `output` may name the embedding's tensor: then both share it."""

    vocabulary: int
    width: int
    context: int  # it was trained for, tokens; 0: the file does not say
    embedding: Linear
    layers: tuple[Layer, ...]
    norm: Norm
    output: Linear
    embedding_scale: float = 1.0
    soft_cap: float = 0.0  # of the logits

    @property
    def windows(self) -> tuple[int, ...]:
        """The windows of its layers, each once: the groups of its KV."""
        return tuple(sorted({layer.attention.window for layer in self.layers}))


class WholeText(msgspec.Struct, frozen=True, kw_only=True):
    """Attention over whole texts, of which nothing is kept: every token sees every other.

    inputs      queries, keys and values: a matrix for each, or one that has them behind each other
    size        of a head's query, key and value alike
    alibi       the steepest of the heads' slopes is 2 ** -(alibi / heads); 0: none
    """

    heads: int
    kv_heads: int
    size: int
    inputs: tuple[Linear, ...]
    output: Linear
    query_norm: LayerNorm | None = None
    key_norm: LayerNorm | None = None
    alibi: float = 0.0


class Dense(msgspec.Struct, frozen=True):
    """A feed-forward network of two matrices. `halves`: the first half of what `up` makes gates the second."""

    up: Linear
    down: Linear
    activation: Activation = "gelu"
    halves: bool = False


class EncoderLayer(msgspec.Struct, frozen=True, kw_only=True):
    """y = norm(x + attention(x)), where there is a second norm y = second(x + y), then norm(y + feed(y))."""

    attention: WholeText
    attention_norm: LayerNorm
    second_norm: LayerNorm | None = None
    feed: Dense | Gated
    feed_norm: LayerNorm


class Encoder(msgspec.Struct, frozen=True, kw_only=True):
    """A whole model that reads whole texts.

    positions   added to the embedding; types: the first of them, too
    rope        turns the queries and keys of every layer
    """

    vocabulary: int
    width: int
    context: int  # longest text that there are positions for
    embedding: Linear
    positions: Linear | None
    types: Linear | None
    rope: Rope | None
    norm: LayerNorm
    layers: tuple[EncoderLayer, ...]


class BothWays(msgspec.Struct, frozen=True):
    """A decoder's layers where tokens see what follows them, too: with a window, half of it on either side.

    dense   matrices that a text's vector goes through at last
    """

    decoder: Decoder
    dense: tuple[Linear, ...] = ()

    @property
    def width(self) -> int:
        return self.decoder.width

    @property
    def vocabulary(self) -> int:
        return self.decoder.vocabulary


def linears(part: Any) -> Iterator[Linear]:
    """Every matrix of a part and of the parts in it."""
    return (found for found in _walk(part) if isinstance(found, Linear))


def norms(part: Any) -> Iterator[Norm | LayerNorm]:
    """The same for norms."""
    return (found for found in _walk(part) if isinstance(found, Norm | LayerNorm))


def vectors(part: Any) -> Iterator[tuple[str, int]]:
    """The names and sizes of what else is read: biases, corrections, frequency factors."""
    for found in _walk(part):
        if isinstance(found, Linear) and found.bias:
            yield found.bias, found.rows
        elif isinstance(found, LayerNorm) and found.bias:
            yield found.bias, found.size
        elif isinstance(found, Experts) and found.correction:
            yield found.correction, found.router.rows
        elif isinstance(found, Rope) and found.factors:
            yield found.factors, found.dims // 2


def tensors(part: Any) -> set[str]:
    """The names of all that is read of a part."""
    return (
        {linear.weight for linear in linears(part)}
        | {norm.weight for norm in norms(part)}
        | {name for name, _ in vectors(part)}
    )


def _walk(part: Any) -> Iterator[Any]:
    if isinstance(part, tuple):
        for item in part:
            yield from _walk(item)
    elif isinstance(part, msgspec.Struct):
        yield part
        for field in part.__struct_fields__:
            yield from _walk(getattr(part, field))
