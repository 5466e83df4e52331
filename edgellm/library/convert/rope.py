"""Rotary positions: config.json's way of saying it into GGUF's.

transformers writes `rope_theta` and `rope_scaling` (up to version 4) or `rope_parameters` (from 5 on), the latter
perhaps one for each kind of layer.
"""

from __future__ import annotations

import math
from typing import Any, Final

from edgellm.library.convert.config import Config
from edgellm.library.convert.weights import Weight, of_floats

DEFAULT_THETA: Final = 10_000.0
_OTHER: Final = "this kind of position scaling is not supported yet; look for a GGUF of the model"


def parameters(config: Config, layers: str = "full_attention") -> Config:
    """The parameters of one kind of layers: rope_type, rope_theta, factor …"""
    said = config.within("rope_parameters") if config.has("rope_parameters") else config.within("rope_scaling")
    if said.has("full_attention") or said.has("sliding_attention"):
        said = said.within(layers)
    values = {key: said.get(key) for key in _KEYS if said.has(key)}
    values["rope_type"] = said.get("rope_type") or said.get("type") or "default"
    for key in ("rope_theta", "partial_rotary_factor", "original_max_position_embeddings"):
        if key not in values and config.has(key):
            values[key] = config.get(key)
    return Config(config.path, values)


_KEYS: Final = (
    "rope_theta",
    "partial_rotary_factor",
    "original_max_position_embeddings",
    "factor",
    "attention_factor",
    "beta_fast",
    "beta_slow",
    "truncate",
    "mscale",
    "mscale_all_dim",
    "low_freq_factor",
    "high_freq_factor",
    "short_factor",
    "long_factor",
)


def metadata(config: Config, head: int, *, kinds: tuple[str, ...] = ("default", "linear", "yarn")) -> dict[str, Any]:
    """GGUF's keys for heads of `head` dimensions. Raises BadModelFile for a kind of scaling not in `kinds`."""
    rope = parameters(config)
    kind = rope.text("rope_type")
    found: dict[str, Any] = {
        "rope.dimension_count": int(head * rope.number("partial_rotary_factor", 1.0)),
        "rope.freq_base": rope.number("rope_theta", DEFAULT_THETA),
    }
    if kind not in (*kinds, "dynamic"):  # dynamic changes nothing within the context it was trained for
        rope.bad("rope_type", f"supported are {', '.join(kinds)}", _OTHER)
    if kind == "linear":
        found |= {"rope.scaling.type": "linear", "rope.scaling.factor": rope.number("factor")}
    elif kind == "yarn":
        found |= _yarn(rope, config)
    elif kind in ("longrope", "su"):
        found |= _longrope(rope, config)
    return found


def _yarn(rope: Config, config: Config) -> dict[str, Any]:
    factor = rope.number("factor")
    found: dict[str, Any] = {
        "rope.scaling.type": "yarn",
        "rope.scaling.factor": factor,
        "rope.scaling.original_context_length": rope.whole(
            "original_max_position_embeddings", config.whole("max_position_embeddings")
        ),
    }
    if rope.has("mscale") and rope.has("mscale_all_dim"):
        wanted = _magnitude(factor, rope.number("mscale")) / _magnitude(factor, rope.number("mscale_all_dim"))
    else:
        wanted = _magnitude(factor, 1.0)
    # llama.cpp applies the usual magnitude itself and multiplies by this key.
    found["rope.scaling.attn_factor"] = rope.number("attention_factor", wanted) / _magnitude(factor, 1.0)
    for key, used in (("beta_fast", 32), ("beta_slow", 1)):
        if rope.number(key, used) != used:
            rope.bad(key, f"the engine computes with {used}", _OTHER)
    if rope.get("truncate") is False:
        rope.bad("truncate", "the engine rounds the borders", _OTHER)
    return found


def _magnitude(factor: float, scale: float) -> float:
    return 1.0 if factor <= 1 else 0.1 * scale * math.log(factor) + 1.0


def _longrope(rope: Config, config: Config) -> dict[str, Any]:
    original = rope.whole("original_max_position_embeddings")
    factor = rope.number("factor", config.whole("max_position_embeddings") / original)
    usual = 1.0 if factor <= 1 else math.sqrt(1 + math.log(factor) / math.log(original))
    return {
        "rope.scaling.type": "longrope",
        "rope.scaling.original_context_length": original,
        "rope.scaling.attn_factor": rope.number("attention_factor", usual),
    }


def llama3_factors(config: Config, head: int) -> dict[str, Weight]:
    """The tensor of divisors of each frequency, where config.json asks for Llama 3's scaling.

    Frequencies whose wave is longer than the original context are slowed by `factor`, short ones kept, those between
    interpolated. Source: "The Llama 3 Herd of Models" and its reference implementation.
    """
    rope = parameters(config)
    if rope.text("rope_type") != "llama3":
        return {}
    base, factor = rope.number("rope_theta", DEFAULT_THETA), rope.number("factor")
    low, high = rope.number("low_freq_factor"), rope.number("high_freq_factor")
    original = rope.whole("original_max_position_embeddings")
    divisors = []
    for index in range(0, head, 2):
        wave = 2 * math.pi * base ** (index / head)
        if wave < original / high:
            divisors.append(1.0)
        elif wave > original / low:
            divisors.append(factor)
        else:
            smooth = (original / wave - low) / (high - low)
            divisors.append(1 / ((1 - smooth) / factor + smooth))
    return {"rope_freqs.weight": of_floats(divisors)}


def longrope_factors(config: Config, dimensions: int) -> dict[str, Weight]:
    """The two tensors of LongRoPE: divisors within the original context, and beyond it."""
    rope = parameters(config)
    if rope.text("rope_type") not in ("longrope", "su"):
        return {}
    found = {}
    for ours, theirs in (("rope_factors_long.weight", "long_factor"), ("rope_factors_short.weight", "short_factor")):
        factors = rope.numbers(theirs)
        if len(factors) != dimensions // 2:
            rope.bad(theirs, f"has {len(factors)} numbers, not {dimensions // 2}")
        found[ours] = of_floats(factors)
    return found
