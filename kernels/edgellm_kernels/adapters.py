"""A low-rank adapter of one linear layer."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True, eq=False)
class Adapter:
    """Adds scale * b @ a @ x: a [rank, k], b [n, rank]; scale is alpha / rank."""

    a: Tensor
    b: Tensor
    scale: float

    def __post_init__(self) -> None:
        if self.a.dim() != 2 or self.b.dim() != 2 or self.a.shape[0] != self.b.shape[1]:
            raise ValueError(f"an adapter of {tuple(self.a.shape)} and {tuple(self.b.shape)} does not fit together")
