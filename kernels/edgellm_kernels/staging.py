"""The way to another device: through a piece of memory of one size that is used again and again."""

from __future__ import annotations

import torch
from torch import Tensor


class Staging:
    """Copies tensors of any size some MiB at a time. For one thread."""

    def __init__(self, nbytes: int, *, locked: bool) -> None:
        """`locked`: page-locked memory, which a GPU fetches by itself; what is not goes through the driver's own."""
        self._held = torch.empty(nbytes, dtype=torch.uint8, pin_memory=locked)

    def copy(self, source: Tensor, target: Tensor) -> None:
        """`source`, on the CPU, into `target`: contiguous and of the same type and shape, wherever it lies."""
        if source.dtype != target.dtype or source.shape != target.shape:
            raise ValueError(f"{source.dtype} {tuple(source.shape)} is no {target.dtype} {tuple(target.shape)}")
        old, new = (tensor.reshape(-1).view(torch.uint8) for tensor in (source, target.detach()))
        for start in range(0, old.numel(), self._held.numel()):
            piece = old[start : start + self._held.numel()]
            held = self._held[: piece.numel()]
            held.copy_(piece)
            new[start : start + piece.numel()].copy_(held)  # waits: then the next piece may come
