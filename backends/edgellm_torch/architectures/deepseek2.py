"""DeepSeek 2 and 3: latent attention, and experts beside a network that every token takes.

The file brings the projections of the compressed keys apart and absorbed, as files have been written since 2025.
"""

from __future__ import annotations

import math
from typing import Final, Literal

import msgspec

from edgellm.errors import LoadFailed
from edgellm_torch.config import Decoder, Experts, Gated, Latent, Layer, Rope
from edgellm_torch.header import Header

_ELSEWHERE: Final = "llama.cpp may run it: engine = llamacpp"
_SCORES: Final[dict[int, Literal["softmax", "sigmoid", "softmax_top"]]] = {
    0: "softmax",  # the file does not say
    1: "softmax",
    2: "sigmoid",
    3: "softmax_top",
}


def deepseek2(header: Header) -> Decoder:
    _refuse_older(header)
    rope, scale = _positions(header)
    ahead = header.number("nextn_predict_layers", 0)  # the last layers guess ahead, and are left aside
    if ahead >= header.layers:
        raise _odd(header, "nextn_predict_layers", ahead)
    dense = header.number("leading_dense_block_count", 0)
    return Decoder(
        vocabulary=header.vocabulary,
        width=header.width,
        context=header.number("context_length", 0),
        embedding=header.embedding(),
        layers=tuple(
            Layer(
                attention_norm=header.norm(f"blk.{n}.attn_norm", header.width),
                attention=_latent(header, n, rope, scale),
                feed_norm=header.norm(f"blk.{n}.ffn_norm", header.width),
                feed=header.gated(n) if n < dense else _experts(header, n),
            )
            for n in range(header.layers - ahead)
        ),
        norm=header.norm("output_norm", header.width),
        output=header.output(),
    )


def _latent(header: Header, layer: int, rope: Rope, scale: float) -> Latent:
    at = f"blk.{layer}."
    heads, width = header.size("attention.head_count", layer=layer), header.width
    rank, value = header.size("attention.kv_lora_rank"), header.size("attention.value_length_mla")
    size = header.size("attention.key_length_mla")
    plain = size - rope.dims
    if plain < 1:
        raise LoadFailed(
            f"{header.model.path.name}: deepseek2.rope.dimension_count is {rope.dims}, and a head's keys have {size}",
            hint="the file is damaged; pull the model again",
        )
    whole = header.has(f"{at}attn_q.weight")  # the smaller models do not compress queries
    queries = width if whole else header.size("attention.q_lora_rank")
    return Latent(
        heads=heads,
        rank=rank,
        plain_size=plain,
        rope_size=rope.dims,
        value_size=value,
        scale=scale,
        query_down=None if whole else header.linear(f"{at}attn_q_a", width, queries),
        query_norm=None if whole else header.norm(f"{at}attn_q_a_norm", queries),
        query=header.linear(f"{at}attn_q" if whole else f"{at}attn_q_b", queries, heads * size),
        key_down=header.linear(f"{at}attn_kv_a_mqa", width, rank + rope.dims),
        key_norm=header.norm(f"{at}attn_kv_a_norm", rank),
        up_keys=header.linear(f"{at}attn_k_b", plain, rank, heads),
        up_values=header.linear(f"{at}attn_v_b", rank, value, heads),
        output=header.linear(f"{at}attn_output", heads * value, width),
        rope=rope,
    )


def _experts(header: Header, layer: int) -> Experts:
    shared = header.number("expert_shared_count", 0) * header.size("expert_feed_forward_length")
    network: Gated | None = header.gated(layer, suffix="_shexp", size=shared) if shared else None
    kind = header.number("expert_gating_func", 0)
    if kind not in _SCORES:
        raise _odd(header, "expert_gating_func", kind)
    return header.experts(
        layer,
        score=_SCORES[kind],
        renormalise=header.truth("expert_weights_norm"),
        scale=header.real("expert_weights_scale", 0.0) or 1.0,
        groups=header.number("expert_group_count", 0) or 1,
        groups_used=header.number("expert_group_used_count", 0) or 1,
        shared=network,
    )


def _positions(header: Header) -> tuple[Rope, float]:
    """The angles, and the scale of the scores, into which YaRN's magnitude goes where the file has a multiplier for it.

    Source: llama.cpp, deepseek2.cpp, which undoes here what its rope does for other models.
    """
    rope = header.rope("interleaved", dims=header.size("rope.dimension_count"))
    log = math.log(rope.factor) if rope.scaling != "none" else 0.0
    usual = 1 + 0.1 * log
    multiplier = header.real("rope.scaling.yarn_log_multiplier", 0.0)
    magnitude = rope.attention_factor * usual
    if rope.scaling == "yarn" and multiplier:
        magnitude = rope.attention_factor
        rope = msgspec.structs.replace(rope, attention_factor=rope.attention_factor / usual)
    magnitude *= 1 + multiplier * log
    return rope, magnitude * magnitude / math.sqrt(header.size("attention.key_length_mla"))


def _refuse_older(header: Header) -> None:
    name = header.model.path.name
    if header.value("attention.key_length_mla") is None:
        raise LoadFailed(
            f"{name} is of an older form, with keys and values of the latent attention in one matrix",
            hint="get a GGUF made since April 2025, or run it with llama.cpp: engine = llamacpp",
        )
    if header.real("attention.temperature_scale", 0.0):
        raise LoadFailed(f"{name} scales its scores by position, which this engine does not do", hint=_ELSEWHERE)


def _odd(header: Header, key: str, value: int) -> LoadFailed:
    told = f"{header.model.path.name}: deepseek2.{key} is {value}, which this engine cannot make sense of"
    return LoadFailed(told, hint=_ELSEWHERE)
