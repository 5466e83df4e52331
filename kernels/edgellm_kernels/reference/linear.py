"""Products of rows with quantised matrices: each tile of the matrix is dequantised, used for all rows, and dropped."""

from __future__ import annotations

import torch
from torch import Tensor

from edgellm_kernels.planes import Weight
from edgellm_kernels.reference import tiles


def linear(x: Tensor, weight: Weight, bias: Tensor | None = None) -> Tensor:
    """x [rows, k] times weight [n, k] transposed, plus bias [n]: float32 [rows, n]."""
    rows, k = x.shape
    if len(weight.shape) != 2 or k != weight.k:
        raise ValueError(f"rows of {k} do not fit a weight of shape {weight.shape}")
    if rows == 0:
        return x.new_zeros((0, weight.n))
    split = tiles.split(x)
    found = x.new_empty((split.shape[0], weight.n, tiles.ROWS))
    for start, end in tiles.spans(weight.n, k):
        matrix = weight[start:end].dense(tiles.scratch(end - start, weight.k, x.device))
        tiles.multiply(matrix, split, found[:, start:end])
    result = tiles.joined(found, rows)
    return result if bias is None else result + bias


def head_linear(x: Tensor, weight: Weight) -> Tensor:
    """Each head by a matrix of its own: x [rows, heads, k], weight [heads, n, k] -> [rows, heads, n]."""
    if len(weight.shape) != 3 or x.shape[1:] != (weight.shape[0], weight.k):
        raise ValueError(f"heads of {tuple(x.shape[1:])} do not fit a weight of shape {weight.shape}")
    return torch.stack([linear(x[:, head], weight[head]) for head in range(weight.shape[0])], dim=1)
