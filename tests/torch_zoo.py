"""Tiny models of every family and block type that the torch engine runs, with random weights: each is written twice,
quantised, and as the very same numbers in F32, so that llama.cpp's sums over the second are the truth for both.
"""

from __future__ import annotations

import hashlib
import math
import mmap
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import gguf
import numpy as np
from gguf.quants import dequantize
from gguf_files import padded, tensor_info
from torch_blocks import Floats, block_elements, random_blocks

from edgellm.formats.gguf import read_keys, read_model
from edgellm.formats.gguf_cursor import Cursor

WORDS = ("▁", "▁the", "▁a", "▁of", "▁light", "house", "▁book", "er", "in", "on", "▁s", "ed", "▁and", "ing", "▁w", "an")

_Tensor = tuple[str, tuple[int, ...], str, float]  # name, shape (outermost first), part, spread
_Keys = dict[str, Any]
# Of norms. The last one makes up for an embedding that must be small to be output, too; and where attention looks at
# all alike, answers are the same token over and over.
_MEANS = {"vector": 1.0, "loud": 10.0, "sharp": 1.25}


class Pair(NamedTuple):
    """The same model twice."""

    quantised: Path
    exact: Path


class Dims(NamedTuple):
    """Rows of 256 numbers wherever a block type wants them."""

    layers: int = 2
    width: int = 256
    ffn: int = 512
    heads: int = 4
    kv_heads: int = 2
    head: int = 64
    experts: int = 4
    used: int = 2
    context: int = 512


def _plain(dims: Dims) -> _Keys:
    return {
        "block_count": dims.layers,
        "context_length": dims.context,
        "embedding_length": dims.width,
        "feed_forward_length": dims.ffn,
        "attention.head_count": dims.heads,
        "attention.head_count_kv": dims.kv_heads,
        "attention.key_length": dims.head,
        "attention.value_length": dims.head,
        "attention.layer_norm_rms_epsilon": 1e-5,
        "rope.dimension_count": dims.head,
    }


def _ends(dims: Dims, *, tied: bool = False) -> list[_Tensor]:
    size = 259 + len(WORDS)
    ends: list[_Tensor] = [
        ("token_embd.weight", (size, dims.width), "matrix", 1.0 if not tied else 0.15 / dims.width**0.5),
        ("output_norm.weight", (dims.width,), "loud" if tied else "vector", 0.2),
    ]
    return ends if tied else [*ends, ("output.weight", (size, dims.width), "matrix", 3 / dims.width**0.5)]


def _matrix(name: str, *shape: int, gain: float = 1.5) -> _Tensor:
    return name, shape, "matrix", gain / shape[-1] ** 0.5


def _norm(name: str, size: int) -> _Tensor:
    return name, (size,), "vector", 0.2


def _attention(dims: Dims, at: str, *, norms: bool = False, biases: bool = False) -> list[_Tensor]:
    queries, keys = dims.heads * dims.head, dims.kv_heads * dims.head
    found = [
        _norm(at + "attn_norm.weight", dims.width),
        _matrix(at + "attn_q.weight", queries, dims.width),
        _matrix(at + "attn_k.weight", keys, dims.width),
        _matrix(at + "attn_v.weight", keys, dims.width),
        _matrix(at + "attn_output.weight", dims.width, queries),
    ]
    if norms:
        found += [(at + f"attn_{name}_norm.weight", (dims.head,), "sharp", 0.2) for name in "qk"]
    if biases:
        found += [
            (at + f"attn_{n}.bias", (size,), "bias", 0.5) for n, size in zip("qkv", (queries, keys, keys), strict=True)
        ]
    return found


def _gated(dims: Dims, at: str) -> list[_Tensor]:
    return [
        _norm(at + "ffn_norm.weight", dims.width),
        _matrix(at + "ffn_gate.weight", dims.ffn, dims.width),
        _matrix(at + "ffn_up.weight", dims.ffn, dims.width),
        _matrix(at + "ffn_down.weight", dims.width, dims.ffn),
    ]


def _experts(dims: Dims, at: str) -> list[_Tensor]:
    return [
        _norm(at + "ffn_norm.weight", dims.width),
        (at + "ffn_gate_inp.weight", (dims.experts, dims.width), "router", 2 / dims.width**0.5),
        _matrix(at + "ffn_gate_exps.weight", dims.experts, dims.ffn, dims.width),
        _matrix(at + "ffn_up_exps.weight", dims.experts, dims.ffn, dims.width),
        _matrix(at + "ffn_down_exps.weight", dims.experts, dims.width, dims.ffn),
    ]


def _layers(dims: Dims, of: Callable[[Dims, str], list[_Tensor]]) -> list[_Tensor]:
    return [tensor for layer in range(dims.layers) for tensor in of(dims, f"blk.{layer}.")]


def _llama(dims: Dims) -> tuple[_Keys, list[_Tensor]]:
    return _plain(dims), [*_ends(dims), *_layers(dims, lambda d, at: _attention(d, at) + _gated(d, at))]


def _mistral(dims: Dims) -> tuple[_Keys, list[_Tensor]]:
    """Heads that are not the width's share, and a window in the header, which llama.cpp leaves aside."""
    keys, tensors = _llama(dims._replace(head=32))
    return keys | {"attention.sliding_window": 16}, tensors


def _mixtral(dims: Dims) -> tuple[_Keys, list[_Tensor]]:
    keys = _plain(dims) | {"expert_count": dims.experts, "expert_used_count": dims.used}
    return keys, [*_ends(dims), *_layers(dims, lambda d, at: _attention(d, at) + _experts(d, at))]


def _qwen2(dims: Dims) -> tuple[_Keys, list[_Tensor]]:
    layers = _layers(dims, lambda d, at: _attention(d, at, biases=True) + _gated(d, at))
    return _plain(dims) | {"rope.freq_base": 1e6}, [*_ends(dims), *layers]


def _qwen3(dims: Dims) -> tuple[_Keys, list[_Tensor]]:
    dims = dims._replace(head=32, kv_heads=1)
    layers = _layers(dims, lambda d, at: _attention(d, at, norms=True) + _gated(d, at))
    return _plain(dims) | {"rope.freq_base": 1e6}, [*_ends(dims, tied=True), *layers]


def _qwen3moe(dims: Dims) -> tuple[_Keys, list[_Tensor]]:
    dims = dims._replace(head=32, ffn=256, experts=8, used=3)
    keys = {"expert_count": 8, "expert_used_count": 3, "expert_feed_forward_length": 256}
    layers = _layers(dims, lambda d, at: _attention(d, at, norms=True) + _experts(d, at))
    return _plain(dims) | keys, [*_ends(dims), *layers]


def _post(dims: Dims, at: str) -> list[_Tensor]:
    return [_norm(at + name, dims.width) for name in ("post_attention_norm.weight", "post_ffw_norm.weight")]


def _gemma2(dims: Dims) -> tuple[_Keys, list[_Tensor]]:
    dims = dims._replace(layers=2 * dims.layers, head=32, ffn=256)
    keys = {"attention.sliding_window": 24, "attn_logit_softcapping": 5.0, "final_logit_softcapping": 10.0}
    layers = _layers(dims, lambda d, at: _attention(d, at) + _gated(d, at) + _post(d, at))
    return _plain(dims) | keys, [*_ends(dims, tied=True), *layers]


def _gemma3(dims: Dims) -> tuple[_Keys, list[_Tensor]]:
    """One layer in four sees everything, with other angles; with a factor, as the larger ones have it."""
    dims = dims._replace(layers=2 * dims.layers, head=32, ffn=256, kv_heads=1)
    keys = {
        "attention.sliding_window": 24,
        "attention.sliding_window_pattern": [n % 4 != 2 for n in range(dims.layers)],
        "rope.freq_base": 1e6,
        "rope.scaling.type": "linear",
        "rope.scaling.factor": 8.0,
    }
    layers = _layers(dims, lambda d, at: _attention(d, at, norms=True) + _gated(d, at) + _post(d, at))
    return _plain(dims) | keys, [*_ends(dims, tied=True), *layers]


_RANK, _TURNED, _STILL, _VALUE, _QUERIES = 256, 32, 64, 32, 256


def _latent(dims: Dims, at: str, *, lite: bool) -> list[_Tensor]:
    size = dims.heads * (_STILL + _TURNED)
    queries = [_matrix(at + "attn_q.weight", size, dims.width)]
    if not lite:
        queries = [
            _matrix(at + "attn_q_a.weight", _QUERIES, dims.width),
            _norm(at + "attn_q_a_norm.weight", _QUERIES),
            _matrix(at + "attn_q_b.weight", size, _QUERIES),
        ]
    return [
        _norm(at + "attn_norm.weight", dims.width),
        *queries,
        _matrix(at + "attn_kv_a_mqa.weight", _RANK + _TURNED, dims.width),
        _norm(at + "attn_kv_a_norm.weight", _RANK),
        _matrix(at + "attn_k_b.weight", dims.heads, _RANK, _STILL, gain=0.7),
        _matrix(at + "attn_v_b.weight", dims.heads, _VALUE, _RANK),
        _matrix(at + "attn_output.weight", dims.width, dims.heads * _VALUE),
    ]


def _deepseek_keys(dims: Dims) -> _Keys:
    return _plain(dims) | {
        "attention.head_count_kv": 1,
        "attention.key_length": _RANK + _TURNED,
        "attention.value_length": _RANK,
        "attention.key_length_mla": _STILL + _TURNED,
        "attention.value_length_mla": _VALUE,
        "attention.kv_lora_rank": _RANK,
        "rope.dimension_count": _TURNED,
        "leading_dense_block_count": 1,
        "expert_count": dims.experts,
        "expert_used_count": dims.used,
        "expert_shared_count": 2,
        "expert_feed_forward_length": 256,
        "expert_weights_scale": 1.5,
        "vocab_size": 259 + len(WORDS),
    }


def _deepseek(dims: Dims, keys: _Keys, *, lite: bool = False, biased: bool = False) -> tuple[_Keys, list[_Tensor]]:
    def layer(dims: Dims, at: str) -> list[_Tensor]:
        if at == "blk.0.":
            return [*_latent(dims, at, lite=lite), *_gated(dims, at)]
        few = dims._replace(ffn=256)
        shared = [
            _matrix(at + "ffn_gate_shexp.weight", 512, dims.width),
            _matrix(at + "ffn_up_shexp.weight", 512, dims.width),
            _matrix(at + "ffn_down_shexp.weight", dims.width, 512),
        ]
        bias: list[_Tensor] = [(at + "exp_probs_b.bias", (dims.experts,), "bias", 0.3)] if biased else []
        return [*_latent(dims, at, lite=lite), *_experts(few, at), *shared, *bias]

    return _deepseek_keys(dims) | keys, [*_ends(dims), *_layers(dims, layer)]


def _deepseek2(dims: Dims) -> tuple[_Keys, list[_Tensor]]:
    """Version 2: softmax, weights as they are, YaRN whose magnitude goes into the scores."""
    keys = {
        "attention.q_lora_rank": _QUERIES,
        "expert_gating_func": 1,
        "rope.scaling.type": "yarn",
        "rope.scaling.factor": 8.0,
        "rope.scaling.original_context_length": 64,
        "rope.scaling.yarn_log_multiplier": 0.0707,
    }
    return _deepseek(dims._replace(experts=8, used=3), keys)


def _deepseek3(dims: Dims) -> tuple[_Keys, list[_Tensor]]:
    """Version 3: sigmoid, a correction of the choice, groups, weights that add up to one and are scaled."""
    keys = {
        "attention.q_lora_rank": _QUERIES,
        "expert_gating_func": 2,
        "expert_weights_norm": True,
        "expert_group_count": 4,
        "expert_group_used_count": 2,
    }
    return _deepseek(dims._replace(experts=8, used=3), keys, biased=True)


def _deepseek_lite(dims: Dims) -> tuple[_Keys, list[_Tensor]]:
    """Queries in one piece. llama.cpp knows it by its number of layers."""
    return _deepseek(dims._replace(layers=26), {}, lite=True)


Families = dict[str, tuple[str, Callable[[Dims], tuple[_Keys, list[_Tensor]]]]]
FAMILIES: Families = {
    "llama": ("llama", _llama),
    "mistral": ("llama", _mistral),
    "mixtral": ("llama", _mixtral),
    "qwen2": ("qwen2", _qwen2),
    "qwen3": ("qwen3", _qwen3),
    "qwen3moe": ("qwen3moe", _qwen3moe),
    "gemma2": ("gemma2", _gemma2),
    "gemma3": ("gemma3", _gemma3),
    "deepseek2": ("deepseek2", _deepseek2),
    "deepseek3": ("deepseek2", _deepseek3),
    "deepseek2-lite": ("deepseek2", _deepseek_lite),
}


def write(
    folder: Path,
    family: str,
    kind: str,
    *,
    keys: _Keys | None = None,
    vectors: dict[str, Floats] | None = None,
    dims: Dims | None = None,
    part: int = 0,
    families: Families = FAMILIES,
) -> Pair:
    """The family's tiny model with matrices of type `kind`. `keys` and `vectors` are added, or replace its own.

    `part`: tensors in a file of the quantised model, which then has several; the first of them is named.
    """
    architecture, make = families[family]
    said, tensors = make(dims or Dims())
    seed = int.from_bytes(hashlib.sha256(f"{family} {kind}".encode()).digest()[:4], "little")
    numbers = np.random.default_rng(seed)
    paths = Pair(folder / f"{family}-{kind}.gguf", folder / f"{family}-{kind}-exact.gguf")
    writers = [
        gguf.GGUFWriter(path, architecture, split_max_tensors=most) for path, most in zip(paths, (part, 0), strict=True)
    ]
    for writer in writers:
        _add_keys(writer, architecture, said | (keys or {}))
        _add_vocabulary(writer)
    for tensor in tensors:
        _add(writers, numbers, kind, tensor)
    for name, vector in (vectors or {}).items():
        for writer in writers:
            writer.add_tensor(name, vector)
    for writer in writers:
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
    return paths if not part else paths._replace(quantised=min(folder.glob(f"{family}-{kind}-00001-of-*.gguf")))


def exact(path: Path, folder: Path) -> Path:
    """The same numbers as another model's, in F32. Its keys are taken over byte by byte."""
    model = read_model(path)
    data = np.memmap(path, np.uint8, "r")
    with path.open("rb") as file:
        head = file.read(24)
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as whole:
            cursor = Cursor(path, whole, model.size)
            read_keys(cursor, model.size)
            keys = whole[24 : cursor.pos]
    infos, offset = b"", 0
    for tensor in model.tensors:
        infos += tensor_info(tensor.name, 0, tensor.shape, offset)
        offset += -(-4 * math.prod(tensor.shape) // 32) * 32
    made = folder / f"{path.stem}-exact.gguf"
    with made.open("wb") as out:
        out.write(padded(head + keys + infos))
        for tensor in model.tensors:
            raw = data[tensor.offset : tensor.offset + tensor.nbytes]
            values = dequantize(raw, gguf.GGMLQuantizationType[tensor.type])
            out.write(padded(np.ascontiguousarray(values, np.float32).tobytes()))
    return made


def _add(writers: Sequence[gguf.GGUFWriter], numbers: np.random.Generator, kind: str, tensor: _Tensor) -> None:
    name, shape, role, spread = tensor
    quantised, exact = writers
    if role != "matrix":
        values = (numbers.standard_normal(shape) * spread).astype(np.float32) + np.float32(_MEANS.get(role, 0.0))
        for writer in writers:
            writer.add_tensor(name, values)
        return
    used = kind if shape[-1] % block_elements(kind) == 0 else "Q8_0"  # as quantisers do
    raw, values = random_blocks(numbers, used, shape, spread)
    quantised.add_tensor(name, raw, raw_dtype=gguf.GGMLQuantizationType[used])
    exact.add_tensor(name, values)


def _add_keys(writer: gguf.GGUFWriter, architecture: str, keys: _Keys) -> None:
    for name, value in keys.items():
        full = name if name.startswith("tokenizer.") else f"{architecture}.{name}"
        if isinstance(value, bool):
            writer.add_bool(full, value)
        elif isinstance(value, int):
            writer.add_uint32(full, value)
        elif isinstance(value, float):
            writer.add_float32(full, value)
        elif isinstance(value, str):
            writer.add_string(full, value)
        else:
            writer.add_array(full, value)


def _add_vocabulary(writer: gguf.GGUFWriter) -> None:
    """Bytes, some words and three control tokens."""
    kind = gguf.TokenType
    tokens = [b"<unk>", b"<s>", b"</s>", *(f"<0x{byte:02X}>".encode() for byte in range(256))]
    tokens += [word.encode() for word in WORDS]
    writer.add_tokenizer_model("llama")
    writer.add_token_list(tokens)
    writer.add_token_scores([0.0] * 259 + [-float(number) for number in range(len(WORDS))])
    writer.add_token_types([kind.UNKNOWN, kind.CONTROL, kind.CONTROL, *[kind.BYTE] * 256, *[kind.NORMAL] * len(WORDS)])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_unk_token_id(0)
    writer.add_add_space_prefix(False)
