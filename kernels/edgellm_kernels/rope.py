"""Rotary positions: the angles, as a model's header describes them.

Sources: Su et al., arXiv:2104.09864; YaRN: Peng et al., arXiv:2309.00071, in the form of ggml's `rope_yarn`.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, floor, log, pi
from typing import Final, Literal

import torch
from torch import Tensor

_PAGE: Final = 256  # positions whose angles are made at once


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


class RopeTable:
    """Cosines and sines of a spec, for positions up to the highest yet asked for, in float64 and rounded once.

    Made in pages of one size, so that a position's values do not depend on what was asked for. For one thread.
    """

    def __init__(self, spec: RopeSpec, device: torch.device | str = "cpu") -> None:
        self.spec = spec
        self._frequencies = spec.frequencies()
        self._turned = torch.empty((0, 2, spec.dims // 2), device=device)

    def at(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Cosine and sine at int64 positions [rows] >= 0: float32 [rows, dims / 2] each."""
        if positions.numel():
            self.cover(int(positions.max()) + 1)
        found = self._turned.index_select(0, positions.to(self._turned.device))
        return found[:, 0], found[:, 1]

    def cover(self, positions: int) -> None:
        """Make what is missing for positions below `positions`."""
        made = self._turned.shape[0]
        if positions <= made:
            return
        end = -(-max(positions, 2 * made) // _PAGE) * _PAGE
        pages = [self._page(start) for start in range(made, end, _PAGE)]
        self._turned = torch.cat([self._turned, *pages])

    def _page(self, start: int) -> Tensor:
        angles = torch.arange(start, start + _PAGE, dtype=torch.float64)[:, None] * self._frequencies
        turned = torch.stack((torch.cos(angles), torch.sin(angles)), dim=1) * self.spec.magnitude
        return turned.to(self._turned)
