"""BERT, and encoders built like it: learned positions (BERT), turned ones (Nomic), or none but slopes (Jina 2).

Token types are those of a first sentence, and tokens see what follows them, whatever the file says: as llama.cpp has
it.
"""

from __future__ import annotations

from typing import Final

from edgellm.errors import LoadFailed
from edgellm_torch.config import Dense, Encoder, EncoderLayer, Gated, LayerNorm, Linear, Rope, WholeText
from edgellm_torch.header import Header

_ALIBI: Final = 8.0


def bert(header: Header) -> Encoder:
    return _encoder(header, [_layer(header, n, _dense(header, n)) for n in range(header.layers)], positions=True)


def nomic_bert(header: Header) -> Encoder:
    rope = header.rope("neox", dims=header.size("rope.dimension_count", header.share()))
    if rope.dims > header.share():
        raise header.damaged(f"rope.dimension_count is {rope.dims}, and a head has {header.share()} numbers")
    return _encoder(header, [_layer(header, n, header.gated(n)) for n in range(header.layers)], rope=rope)


def jina_bert_v2(header: Header) -> Encoder:
    """Some have more norms, some a gate in a matrix of its own or as one half of `ffn_up`, some none."""

    def layer(n: int) -> EncoderLayer:
        apart = header.has(f"blk.{n}.ffn_gate.weight")
        feed = header.gated(n, "gelu") if apart else _dense(header, n, may_gate=True)
        return _layer(header, n, feed, alibi=_ALIBI, more_norms=True)

    return _encoder(header, [layer(n) for n in range(header.layers)])


def _encoder(
    header: Header, layers: list[EncoderLayer], *, positions: bool = False, rope: Rope | None = None
) -> Encoder:
    width, context = header.width, header.size("context_length")
    types = header.tensors.get("token_types.weight")
    return Encoder(
        vocabulary=header.vocabulary,
        width=width,
        context=context,
        embedding=header.embedding(),
        positions=header.linear("position_embd", width, context) if positions else None,
        types=header.linear("token_types", width, types.shape[-1]) if types else None,
        rope=rope,
        norm=header.layer_norm("token_embd_norm", width),
        layers=tuple(layers),
    )


def _layer(
    header: Header,
    layer: int,
    feed: Dense | Gated,
    *,
    alibi: float = 0.0,
    more_norms: bool = False,
) -> EncoderLayer:
    at, width = f"blk.{layer}.", header.width

    def norm(name: str, size: int) -> LayerNorm | None:
        return header.layer_norm(at + name, size) if more_norms and header.has(f"{at}{name}.weight") else None

    heads, kv_heads, size = _heads(header, layer)
    return EncoderLayer(
        attention=WholeText(
            heads=heads,
            kv_heads=kv_heads,
            size=size,
            inputs=_inputs(header, at, kv_heads * size),
            output=header.linear(f"{at}attn_output", width, width),
            query_norm=norm("attn_q_norm", width),
            key_norm=norm("attn_k_norm", kv_heads * size),
            alibi=alibi,
        ),
        attention_norm=header.layer_norm(f"{at}attn_output_norm", width),
        second_norm=norm("attn_norm_2", width),
        feed=feed,
        feed_norm=header.layer_norm(f"{at}layer_output_norm", width),
    )


def _heads(header: Header, layer: int) -> tuple[int, int, int]:
    """How many there are, how many of keys and values, and the numbers of each."""
    heads = header.size("attention.head_count", layer=layer)
    kv_heads = header.size("attention.head_count_kv", heads, layer)
    size = header.width // heads
    if size * heads != header.width or heads % kv_heads:
        raise header.damaged(f"{heads} heads, {kv_heads} of keys, do not share a width of {header.width}")
    return heads, kv_heads, size


def _inputs(header: Header, at: str, keys: int) -> tuple[Linear, ...]:
    width = header.width
    if not header.has(f"{at}attn_qkv.weight"):
        sizes = {"attn_q": width, "attn_k": keys, "attn_v": keys}
        return tuple(header.linear(at + name, width, size) for name, size in sizes.items())
    if header.has(f"{at}attn_q.bias"):
        raise LoadFailed(
            f"{header.model.path.name}: the bias of {at}attn_qkv is in three parts, which this engine does not join",
            hint="llama.cpp may run it: engine = llamacpp",
        )
    return (header.linear(f"{at}attn_qkv", width, width + 2 * keys),)


def _dense(header: Header, layer: int, *, may_gate: bool = False) -> Dense:
    """`ffn_up` may be of twice the size, and hold the gate in its first half."""
    at, width = f"blk.{layer}.ffn_", header.width
    size = header.size("feed_forward_length", layer=layer)
    halves = may_gate and header.tensor(f"{at}up.weight").shape[-1] == 2 * size
    up = header.linear(f"{at}up", width, 2 * size if halves else size)
    return Dense(up, header.linear(f"{at}down", size, width), halves=halves)
