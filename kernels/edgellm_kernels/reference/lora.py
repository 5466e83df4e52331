"""Low-rank adapters, a different one for each row if need be. Source: Hu et al., arXiv:2106.09685."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from edgellm_kernels.adapters import Adapter
from edgellm_kernels.planes import Weight
from edgellm_kernels.reference.linear import linear


def lora(x: Tensor, adapters: Sequence[Adapter], index: Tensor) -> Tensor:
    """What adapters add to a linear layer: x [rows, k], index int64 [rows] (-1: no adapter) -> [rows, n].

    All adapters have the same k and n; ranks may differ.
    """
    if not adapters:
        raise ValueError("there are no adapters")
    result = x.new_zeros((x.shape[0], adapters[0].b.shape[0]))
    for number in torch.unique(index).tolist():
        if number < 0:
            continue
        if number >= len(adapters):
            raise ValueError(f"a row wants adapter {number} of {len(adapters)}")
        adapter = adapters[number]
        rows = (index == number).nonzero().squeeze(1)
        inner = linear(x.index_select(0, rows), Weight.from_tensor(adapter.a))
        result[rows] = linear(inner, Weight.from_tensor(adapter.b)) * adapter.scale
    return result
