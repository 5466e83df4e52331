"""Turning heads by their positions."""

from __future__ import annotations

import torch
from torch import Tensor

from edgellm_kernels.rope import Angles


def rope(x: Tensor, angles: Angles) -> Tensor:
    """x [rows, heads, size] turned by the angles of its rows, in the first `dims` values of each head; a copy."""
    dims = angles.spec.dims
    if x.shape[-1] < dims:
        raise ValueError(f"heads of {x.shape[-1]} values cannot be turned in {dims}")
    cosine, sine = angles.cosine[:, None], angles.sine[:, None]
    result = x.clone()
    if angles.spec.style == "interleaved":
        first, second = slice(0, dims, 2), slice(1, dims, 2)
    else:
        first, second = slice(0, dims // 2), slice(dims // 2, dims)
    a, b = x[..., first], x[..., second]
    torch.sub(a * cosine, b * sine, out=result[..., first])
    torch.add(a * sine, b * cosine, out=result[..., second])
    return result
