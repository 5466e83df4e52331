"""Model files of many architectures that llama.cpp loads: true headers of any size, weights that are holes."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import msgspec
from gguf_files import BOOL, F32, I32, STRING, U16, U32, Key, Tensor, array, header, key, nbytes, padded, tensor_info


class Size(msgspec.Struct, frozen=True, kw_only=True):
    """The dimensions of a model."""

    layers: int = 6
    width: int = 256
    ffn: int = 512
    heads: int = 8
    kv_heads: int = 2
    head: int = 32
    vocabulary: int = 512
    context: int = 4096
    window: int = 256
    experts: int = 8
    used: int = 2
    weight: int = 0  # tensor type of the matrices: 0 is F32, 2 is Q4_0


Parts = tuple[list[Key], list[Tensor]]
Maker = Callable[[Size], Parts]


def write(folder: Path, architecture: str, size: Size | None = None, *, tokenizer: str = "none") -> Path:
    """The model of that name; takes no room on disk but for its header.

    It has no vocabulary, whatever `tokenizer` says: with another than "none" it can be planned for, not loaded.
    """
    size = size or Size()
    keys, tensors = ZOO[architecture](size)
    path = folder / f"{architecture}.gguf"
    return _written(path, [*_common(architecture, size, tokenizer), *keys], tensors)


def write_parts(folder: Path, architecture: str, count: int) -> list[Path]:
    """The same model in several files, as gguf-split writes them: the first without a tensor."""
    size = Size()
    keys, tensors = ZOO[architecture](size)
    each = -(-len(tensors) // (count - 1))
    paths = []
    for number in range(count):
        own = [*_common(architecture, size, "none"), *keys] if number == 0 else []
        split = [key("split.no", U16, number), key("split.count", U16, count)]
        split += [key("split.tensors.count", I32, len(tensors))]
        held = tensors[(number - 1) * each : number * each] if number else []
        paths.append(_written(folder / f"sha256-{number}", [*own, *split], held))
    return paths


def _written(path: Path, keys: list[Key], tensors: list[Tensor]) -> Path:
    infos, data = b"", 0
    for name, kind, shape in tensors:
        infos += tensor_info(name, kind, shape, data)
        data += -(-nbytes(kind, shape) // 32) * 32
    path.write_bytes(padded(header(len(tensors), len(keys)) + b"".join(keys) + infos))
    os.truncate(path, path.stat().st_size + data)
    return path


def _common(architecture: str, size: Size, tokenizer: str) -> list[Key]:
    return [
        key("general.architecture", STRING, architecture),
        key("tokenizer.ggml.model", STRING, tokenizer),
        key(f"{architecture}.vocab_size", U32, size.vocabulary),
        key(f"{architecture}.context_length", U32, size.context),
        key(f"{architecture}.block_count", U32, size.layers),
        key(f"{architecture}.embedding_length", U32, size.width),
    ]


def _numbers(architecture: str, **values: int | float | bool | list[int] | list[bool]) -> list[Key]:
    """Keys from names with "__" for dots."""
    found = []
    for name, value in values.items():
        full = f"{architecture}.{name.replace('__', '.')}"
        if isinstance(value, list):
            found.append(array(full, BOOL if isinstance(value[0], bool) else U32, value))
        else:
            found.append(
                key(full, F32 if isinstance(value, float) else BOOL if isinstance(value, bool) else U32, value)
            )
    return found


def _ends(size: Size, *, tied: bool = True, norm: str = "output_norm.weight") -> list[Tensor]:
    ends: list[Tensor] = [("token_embd.weight", size.weight, (size.width, size.vocabulary)), (norm, 0, (size.width,))]
    return ends if tied else [*ends, ("output.weight", size.weight, (size.width, size.vocabulary))]


def _attention(size: Size, layer: int, *, bias: bool = False, norms: bool = False) -> list[Tensor]:
    at, width, kind = f"blk.{layer}.", size.width, size.weight
    queries, keys = size.heads * size.head, size.kv_heads * size.head
    found: list[Tensor] = [
        (at + "attn_norm.weight", 0, (width,)),
        (at + "attn_q.weight", kind, (width, queries)),
        (at + "attn_k.weight", kind, (width, keys)),
        (at + "attn_v.weight", kind, (width, keys)),
        (at + "attn_output.weight", kind, (queries, width)),
    ]
    if bias:
        found += [(at + f"attn_{name}.bias", 0, (count,)) for name, count in (("q", queries), ("k", keys), ("v", keys))]
    if norms:
        found += [(at + f"attn_{name}_norm.weight", 0, (size.head,)) for name in ("q", "k")]
    return found


def _ffn(size: Size, layer: int) -> list[Tensor]:
    at, kind = f"blk.{layer}.", size.weight
    return [
        (at + "ffn_norm.weight", 0, (size.width,)),
        (at + "ffn_gate.weight", kind, (size.width, size.ffn)),
        (at + "ffn_up.weight", kind, (size.width, size.ffn)),
        (at + "ffn_down.weight", kind, (size.ffn, size.width)),
    ]


def _experts(size: Size, layer: int, *, norm: bool = True) -> list[Tensor]:
    at, kind = f"blk.{layer}.", size.weight
    found: list[Tensor] = [(at + "ffn_norm.weight", 0, (size.width,))] if norm else []
    return [
        *found,
        (at + "ffn_gate_inp.weight", 0, (size.width, size.experts)),
        (at + "ffn_gate_exps.weight", kind, (size.width, size.ffn, size.experts)),
        (at + "ffn_up_exps.weight", kind, (size.width, size.ffn, size.experts)),
        (at + "ffn_down_exps.weight", kind, (size.ffn, size.width, size.experts)),
    ]


def _plain_keys(architecture: str, size: Size) -> list[Key]:
    return _numbers(
        architecture,
        feed_forward_length=size.ffn,
        attention__head_count=size.heads,
        attention__head_count_kv=size.kv_heads,
        attention__key_length=size.head,
        attention__value_length=size.head,
        attention__layer_norm_rms_epsilon=1e-6,
        rope__dimension_count=size.head,
    )


def _llama(size: Size) -> Parts:
    keys = [*_plain_keys("llama", size), *_numbers("llama", attention__sliding_window=size.window)]  # as Mistral says
    return keys, [*_ends(size), *(t for n in range(size.layers) for t in (*_attention(size, n), *_ffn(size, n)))]


def _qwen2(size: Size) -> Parts:
    layers = [t for n in range(size.layers) for t in (*_attention(size, n, bias=True), *_ffn(size, n))]
    return _plain_keys("qwen2", size), [*_ends(size, tied=False), *layers]


def _qwen3(size: Size) -> Parts:
    layers = [t for n in range(size.layers) for t in (*_attention(size, n, norms=True), *_ffn(size, n))]
    return _plain_keys("qwen3", size), [*_ends(size), *layers]


def _qwen3moe(size: Size) -> Parts:
    keys = _numbers(
        "qwen3moe", expert_count=size.experts, expert_used_count=size.used, expert_feed_forward_length=size.ffn
    )
    layers = [t for n in range(size.layers) for t in (*_attention(size, n, norms=True), *_experts(size, n))]
    return [*_plain_keys("qwen3moe", size), *keys], [*_ends(size, tied=False), *layers]


def _post(size: Size, layer: int) -> list[Tensor]:
    return [(f"blk.{layer}.{name}.weight", 0, (size.width,)) for name in ("post_attention_norm", "post_ffw_norm")]


def _gemma2(size: Size) -> Parts:
    keys = _numbers("gemma2", attention__sliding_window=size.window)
    layers = [t for n in range(size.layers) for t in (*_attention(size, n), *_ffn(size, n), *_post(size, n))]
    return [*_plain_keys("gemma2", size), *keys], [*_ends(size), *layers]


def _gemma3(size: Size) -> Parts:
    keys = _numbers("gemma3", attention__sliding_window=size.window)
    layers = [
        t for n in range(size.layers) for t in (*_attention(size, n, norms=True), *_ffn(size, n), *_post(size, n))
    ]
    return [*_plain_keys("gemma3", size), *keys], [*_ends(size), *layers]


def _phi3(size: Size) -> Parts:
    size = msgspec.structs.replace(size, head=size.width // size.heads)
    layers: list[Tensor] = []
    for n in range(size.layers):
        at = f"blk.{n}."
        layers += [
            (at + "attn_norm.weight", 0, (size.width,)),
            (at + "attn_qkv.weight", size.weight, (size.width, size.width + 2 * size.kv_heads * size.head)),
            (at + "attn_output.weight", size.weight, (size.width, size.width)),
            (at + "ffn_norm.weight", 0, (size.width,)),
            (at + "ffn_up.weight", size.weight, (size.width, 2 * size.ffn)),
            (at + "ffn_down.weight", size.weight, (size.ffn, size.width)),
        ]
    keys = _numbers("phi3", attention__sliding_window=size.window)
    return [*_plain_keys("phi3", size), *keys], [*_ends(size, tied=False), *layers]


def _deepseek2(size: Size) -> Parts:
    """Latent attention as the newer files have it, absorbed; the first layer dense, the others with experts."""
    rank, rope, nope, value, queries = 64, 16, 32, 32, 48
    keys = _numbers(
        "deepseek2",
        feed_forward_length=size.ffn,
        attention__head_count=size.heads,
        attention__head_count_kv=1,
        attention__key_length=rank + rope,
        attention__value_length=rank,
        attention__key_length_mla=nope + rope,
        attention__value_length_mla=value,
        attention__q_lora_rank=queries,
        attention__kv_lora_rank=rank,
        attention__layer_norm_rms_epsilon=1e-6,
        rope__dimension_count=rope,
        leading_dense_block_count=1,
        expert_count=size.experts,
        expert_used_count=size.used,
        expert_shared_count=1,
        expert_feed_forward_length=size.ffn,
        expert_weights_scale=1.0,
        expert_gating_func=1,
    )
    tensors = _ends(size, tied=False)
    for n in range(size.layers):
        at, kind = f"blk.{n}.", size.weight
        tensors += [
            (at + "attn_norm.weight", 0, (size.width,)),
            (at + "attn_kv_a_norm.weight", 0, (rank,)),
            (at + "attn_q_a_norm.weight", 0, (queries,)),
            (at + "attn_q_a.weight", 0, (size.width, queries)),
            (at + "attn_q_b.weight", 0, (queries, size.heads * (nope + rope))),
            (at + "attn_kv_a_mqa.weight", kind, (size.width, rank + rope)),
            (at + "attn_k_b.weight", kind, (nope, rank, size.heads)),
            (at + "attn_v_b.weight", kind, (rank, value, size.heads)),
            (at + "attn_output.weight", kind, (size.heads * value, size.width)),
        ]
        if n == 0:
            tensors += _ffn(size, n)
        else:
            tensors += [*_experts(size, n)]
            tensors += [
                (at + "ffn_gate_shexp.weight", kind, (size.width, size.ffn)),
                (at + "ffn_up_shexp.weight", kind, (size.width, size.ffn)),
                (at + "ffn_down_shexp.weight", kind, (size.ffn, size.width)),
            ]
    return keys, tensors


_KERNEL, _STATE, _RANK = 4, 16, 16


def _recurrent(size: Size, layer: int, *, norms: bool = False) -> list[Tensor]:
    at, inner, kind = f"blk.{layer}.", 2 * size.width, size.weight
    found: list[Tensor] = [
        (at + "attn_norm.weight", 0, (size.width,)),
        (at + "ssm_in.weight", kind, (size.width, 2 * inner)),
        (at + "ssm_conv1d.weight", 0, (_KERNEL, inner)),
        (at + "ssm_conv1d.bias", 0, (inner,)),
        (at + "ssm_x.weight", kind, (inner, _RANK + 2 * _STATE)),
        (at + "ssm_dt.weight", 0, (_RANK, inner)),
        (at + "ssm_dt.bias", 0, (inner,)),
        (at + "ssm_a", 0, (_STATE, inner)),
        (at + "ssm_d", 0, (inner,)),
        (at + "ssm_out.weight", kind, (inner, size.width)),
    ]
    if norms:
        found += [
            (at + f"ssm_{name}_norm.weight", 0, (n,)) for name, n in (("dt", _RANK), ("b", _STATE), ("c", _STATE))
        ]
    return found


def _recurrent_keys(architecture: str, size: Size) -> list[Key]:
    return _numbers(
        architecture,
        ssm__conv_kernel=_KERNEL,
        ssm__inner_size=2 * size.width,
        ssm__state_size=_STATE,
        ssm__time_step_rank=_RANK,
        attention__layer_norm_rms_epsilon=1e-6,
    )


def _mamba(size: Size) -> Parts:
    keys = _numbers("mamba", feed_forward_length=0, attention__head_count=0)
    layers = [t for n in range(size.layers) for t in _recurrent(size, n)]
    return [*_recurrent_keys("mamba", size), *keys], [*_ends(size), *layers]


def _jamba(size: Size) -> Parts:
    """Attention in every third layer, a recurrent state in the others."""
    size = msgspec.structs.replace(size, head=size.width // size.heads)
    heads = [size.kv_heads if n % 3 == 2 else 0 for n in range(size.layers)]
    keys = _numbers("jamba", feed_forward_length=size.ffn, attention__head_count=size.heads)
    keys += _numbers("jamba", attention__head_count_kv=heads)
    layers: list[Tensor] = []
    for n in range(size.layers):
        layers += _attention(size, n) if heads[n] else _recurrent(size, n, norms=True)
        layers += _ffn(size, n)
    return [*_recurrent_keys("jamba", size), *keys], [*_ends(size), *layers]


def _lfm2(size: Size) -> Parts:
    """Short convolutions, and attention in every third layer."""
    size = msgspec.structs.replace(size, head=size.width // size.heads)
    heads = [size.kv_heads if n % 3 == 2 else 0 for n in range(size.layers)]
    keys = _numbers(
        "lfm2",
        feed_forward_length=size.ffn,
        attention__head_count=size.heads,
        attention__head_count_kv=heads,
        attention__layer_norm_rms_epsilon=1e-6,
        shortconv__l_cache=3,
    )
    layers: list[Tensor] = []
    for n in range(size.layers):
        at, kind = f"blk.{n}.", size.weight
        if heads[n]:
            layers += _attention(size, n, norms=True)
        else:
            layers += [
                (at + "attn_norm.weight", 0, (size.width,)),
                (at + "shortconv.conv.weight", 0, (3, size.width)),
                (at + "shortconv.in_proj.weight", kind, (size.width, 3 * size.width)),
                (at + "shortconv.out_proj.weight", kind, (size.width, size.width)),
            ]
        layers += _ffn(size, n)
    return keys, [*_ends(size, norm="token_embd_norm.weight"), *layers]


ZOO: dict[str, Maker] = {
    "llama": _llama,
    "qwen2": _qwen2,
    "qwen3": _qwen3,
    "qwen3moe": _qwen3moe,
    "gemma2": _gemma2,
    "gemma3": _gemma3,
    "phi3": _phi3,
    "deepseek2": _deepseek2,
    "mamba": _mamba,
    "jamba": _jamba,
    "lfm2": _lfm2,
}
