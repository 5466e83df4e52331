"""Rotary positions: the angles, as a model's header describes them.

Sources: Su et al., arXiv:2104.09864; YaRN: Peng et al., arXiv:2309.00071, in the form of ggml's `rope_yarn`.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from math import ceil, floor, log, pi
from typing import Literal

import torch
from torch import Tensor

from edgellm_kernels.reference.circle import circle


@dataclass(frozen=True)
class RopeSpec:
    """How positions turn the heads.

    dims                how many values of a head are turned; the rest is left alone
    style               "interleaved": pairs are neighbours (LLaMA's GGUF); "neox": dims / 2 apart (Qwen, Gemma)
    factor              of linear scaling and YaRN: how many times longer texts may be than in training
    original_context    tokens in training; YaRN only
    attention_factor    multiplies cosine and sine, with YaRN besides its own 1 + 0.1 ln(factor)
    beta_fast, _slow    YaRN keeps what turns beta_fast times in the original context, and stretches below beta_slow
    factors             dims / 2 numbers which frequencies are divided by (`rope_freqs.weight`: Llama 3)
    """

    dims: int
    base: float = 10000.0
    style: Literal["interleaved", "neox"] = "interleaved"
    scaling: Literal["none", "linear", "yarn"] = "none"
    factor: float = 1.0
    original_context: int = 0
    attention_factor: float = 1.0
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    factors: tuple[float, ...] | None = None

    def __post_init__(self) -> None:
        if self.dims < 2 or self.dims % 2:
            raise ValueError(f"rope turns an even number of values, not {self.dims}")
        if self.factor <= 0 or self.base <= 0:
            raise ValueError(f"rope's base {self.base} and factor {self.factor} must be positive")
        if self.factors is not None and len(self.factors) != self.dims // 2:
            raise ValueError(f"{len(self.factors)} frequency factors for {self.dims // 2} frequencies")
        if self.scaling == "yarn" and self.original_context < 1:
            raise ValueError("YaRN needs the context of training (rope.scaling.original_context_length)")

    @property
    def magnitude(self) -> float:
        """What cosine and sine are multiplied by."""
        return self.attention_factor * (1.0 + 0.1 * log(self.factor) if self.scaling == "yarn" else 1.0)

    def frequencies(self) -> Tensor:
        """Radians per position: float64 [dims / 2]."""
        pair = torch.arange(self.dims // 2, dtype=torch.float64)
        kept = torch.pow(torch.tensor(self.base, dtype=torch.float64), -2.0 * pair / self.dims)
        if self.factors is not None:
            kept = kept / torch.tensor(self.factors, dtype=torch.float64)
        if self.scaling == "none":
            return kept
        stretched = kept / self.factor
        if self.scaling == "linear":
            return stretched
        low, high = self._range()
        ramp = 1.0 - ((pair - low) / max(0.001, high - low)).clamp(0.0, 1.0)
        return stretched * (1.0 - ramp) + kept * ramp

    def _range(self) -> tuple[float, float]:
        """The pairs between which YaRN goes over from kept to interpolated frequencies."""

        def pair(rotations: float) -> float:
            return self.dims * log(self.original_context / (rotations * 2 * pi)) / (2 * log(self.base))

        return max(0, floor(pair(self.beta_fast))), min(self.dims - 1, ceil(pair(self.beta_slow)))


@dataclass(frozen=True, eq=False)
class Angles:
    """Cosine and sine for the rows of a call: float32 [rows, dims / 2] each, turned in the spec's style."""

    spec: RopeSpec
    cosine: Tensor
    sine: Tensor


def angles(spec: RopeSpec, positions: Tensor) -> Angles:
    """At int64 positions [rows] from 0 on, computed in float64 and rounded once.

    All layers of a step share them. No table is kept: to the end of a long context one would take as much as a layer.
    """
    turns = positions.double()[:, None] * _frequencies(spec, positions.device)
    cosine, sine = (part * spec.magnitude for part in circle(turns))
    return Angles(spec, cosine.float(), sine.float())


@lru_cache(maxsize=64)
def _frequencies(spec: RopeSpec, device: torch.device) -> Tensor:
    with torch.inference_mode(False):  # what is kept must be of use outside, too
        return spec.frequencies().to(device)
