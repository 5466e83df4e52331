"""To the device and back without waiting for it: what it still has to do goes on meanwhile.

A copy from or to memory that may be paged out waits for everything the device has been given before. So on a GPU small
tensors go through page-locked memory, and an event tells when one has come back.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor


def upload(values: Sequence[Any], dtype: torch.dtype, device: torch.device | str) -> Tensor:
    """Numbers, or rows of them, as a tensor on the device."""
    locked = torch.device(device).type == "cuda"
    return torch.tensor(values, dtype=dtype, pin_memory=locked).to(device, non_blocking=True)


class Download:
    """Tensors of one device on their way to the host, behind what it has been given so far, not what follows."""

    def __init__(self, tensors: Sequence[Tensor]) -> None:
        locked = bool(tensors) and tensors[0].is_cuda
        self._done = torch.cuda.Event() if locked else None
        self._tensors = [_fetched(tensor) if locked else tensor for tensor in tensors]
        if self._done is not None:
            self._done.record(torch.cuda.current_stream(tensors[0].device))

    def wait(self) -> list[Tensor]:
        """The tensors, on the host. Raises RuntimeError where the device failed."""
        if self._done is not None:
            self._done.synchronize()
        return [tensor.cpu() for tensor in self._tensors]


def _fetched(tensor: Tensor) -> Tensor:
    host = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
    return host.copy_(tensor, non_blocking=True)
