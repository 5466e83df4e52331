"""Tiny encoders of every family that the torch engine runs, for torch_zoo.write: BERT and those built like it."""

from __future__ import annotations

from typing import Any

from torch_zoo import FAMILIES, WORDS, Dims, Families

Tensor = tuple[str, tuple[int, ...], str, float]  # as torch_zoo has them
SIZE = 259 + len(WORDS)


def _matrix(name: str, rows: int, columns: int, gain: float = 1.5) -> list[Tensor]:
    return [(f"{name}.weight", (rows, columns), "matrix", gain / columns**0.5), (f"{name}.bias", (rows,), "bias", 0.3)]


def _norm(name: str, size: int) -> list[Tensor]:
    return [(f"{name}.weight", (size,), "vector", 0.2), (f"{name}.bias", (size,), "bias", 0.2)]


def _keys(dims: Dims) -> dict[str, Any]:
    return {
        "block_count": dims.layers,
        "context_length": dims.context,
        "embedding_length": dims.width,
        "feed_forward_length": dims.ffn,
        "attention.head_count": dims.heads,
        "attention.layer_norm_epsilon": 1e-6,
        "attention.causal": False,
        "pooling_type": 1,
        "tokenizer.ggml.token_type_count": 2,
    }


def _model(dims: Dims, layer: list[Tensor], *, positions: bool = False, types: bool = True) -> list[Tensor]:
    """`layer`: its tensors, named without the layer's number."""
    found: list[Tensor] = [
        ("token_embd.weight", (SIZE, dims.width), "matrix", 1.0),
        *_norm("token_embd_norm", dims.width),
    ]
    if positions:
        found.append(("position_embd.weight", (dims.context, dims.width), "matrix", 0.7))
    if types:
        found.append(("token_types.weight", (2, dims.width), "vector", 0.7))
    return found + [(f"blk.{n}.{tensor[0]}", *tensor[1:]) for n in range(dims.layers) for tensor in layer]


def _around(dims: Dims) -> list[Tensor]:
    """What every family has beside its queries, keys, values and network."""
    return [
        *_matrix("attn_output", dims.width, dims.width),
        *_norm("attn_output_norm", dims.width),
        *_norm("layer_output_norm", dims.width),
    ]


def _apart(dims: Dims, kv: int | None = None) -> list[Tensor]:
    kv = kv or dims.width
    sizes = {"attn_q": dims.width, "attn_k": kv, "attn_v": kv}
    return [tensor for name, size in sizes.items() for tensor in _matrix(name, size, dims.width)]


def _dense(dims: Dims, *, up: int = 1) -> list[Tensor]:
    return [*_matrix("ffn_up", up * dims.ffn, dims.width), *_matrix("ffn_down", dims.width, dims.ffn)]


def _bert(dims: Dims) -> tuple[dict[str, Any], list[Tensor]]:
    return _keys(dims), _model(dims, [*_apart(dims), *_around(dims), *_dense(dims)], positions=True)


def _bert_together(dims: Dims) -> tuple[dict[str, Any], list[Tensor]]:
    """Queries, keys and values in one matrix, heads that share keys, no types, the last token's vector; and a header
    which says that tokens do not see what follows them, which llama.cpp leaves aside."""
    layer = [*_matrix("attn_qkv", 2 * dims.width, dims.width), *_around(dims), *_dense(dims)]
    more = {"attention.head_count_kv": 2, "attention.causal": True, "pooling_type": 3}
    return _keys(dims) | more, _model(dims, layer, positions=True, types=False)


def _nomic(dims: Dims) -> tuple[dict[str, Any], list[Tensor]]:
    network = [t for t in _matrix("ffn_gate", dims.ffn, dims.width) + _dense(dims) if t[0].endswith("weight")]
    layer = [*_matrix("attn_qkv", 3 * dims.width, dims.width), *_around(dims), *network]
    return _keys(dims) | {"rope.freq_base": 1000.0, "pooling_type": 2}, _model(dims, layer)


def _jina(dims: Dims) -> tuple[dict[str, Any], list[Tensor]]:
    """A gate in one matrix with what it gates, and norms that not all have; heads that are no power of two."""
    dims = dims._replace(heads=6, width=384)
    norms = [tensor for name in ("attn_q_norm", "attn_k_norm", "attn_norm_2") for tensor in _norm(name, dims.width)]
    layer = [*_apart(dims), *_around(dims), *norms, *_dense(dims, up=2)]
    return _keys(dims), _model(dims, layer)


def _jina_small(dims: Dims) -> tuple[dict[str, Any], list[Tensor]]:
    gate = _matrix("ffn_gate", dims.ffn, dims.width)[:1]
    up = _matrix("ffn_up", dims.ffn, dims.width)[:1]
    down = _matrix("ffn_down", dims.width, dims.ffn)
    return _keys(dims), _model(dims, [*_apart(dims), *_around(dims), *gate, *up, *down])


def _gemma(dims: Dims) -> tuple[dict[str, Any], list[Tensor]]:
    """Gemma 3's layers, windows as a period, angles of windows as they are by default, two matrices at the end."""
    keys, tensors = FAMILIES["gemma3"][1](dims)
    del keys["attention.sliding_window_pattern"]
    sizes = {"dense_2_feat_in": dims.width, "dense_2_feat_out": dims.ffn, "dense_3_feat_in": dims.ffn}
    sizes |= {"dense_3_feat_out": dims.width, "attention.sliding_window_pattern": 3, "pooling_type": 1}
    return keys | sizes, [
        *tensors,
        ("dense_2.weight", (dims.ffn, dims.width), "matrix", 1.5 / dims.width**0.5),
        ("dense_3.weight", (dims.width, dims.ffn), "matrix", 1.5 / dims.ffn**0.5),
    ]


def _gemma_plain(dims: Dims) -> tuple[dict[str, Any], list[Tensor]]:
    """As converted without them, and with a pattern layer by layer."""
    keys, tensors = FAMILIES["gemma3"][1](dims)
    return keys | {"pooling_type": 1, "rope.freq_base_swa": 5000.0}, tensors


ENCODERS: Families = {
    "gemma-embedding": ("gemma-embedding", _gemma),
    "gemma-embedding-plain": ("gemma-embedding", _gemma_plain),
    "bert": ("bert", _bert),
    "bert-together": ("bert", _bert_together),
    "nomic-bert": ("nomic-bert", _nomic),
    "jina-bert-v2": ("jina-bert-v2", _jina),
    "jina-bert-v2-small": ("jina-bert-v2", _jina_small),
}
