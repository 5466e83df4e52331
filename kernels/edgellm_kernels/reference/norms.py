"""Normalisation over the last axis."""

from __future__ import annotations

import torch
from torch import Tensor

from edgellm_kernels.reference.exact import row_sum


def rms_norm(x: Tensor, weight: Tensor | None, eps: float) -> Tensor:
    """x / sqrt(mean(x^2) + eps) * weight: x [..., n], weight [n]. Gemma's "1 + weight" is in its GGUF already.

    Source: Zhang and Sennrich, arXiv:1910.07467.
    """
    mean = row_sum(x * x) / x.shape[-1]
    result = x / torch.sqrt(mean + eps)[..., None]
    return result if weight is None else result * weight


def layer_norm(x: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float) -> Tensor:
    """(x - mean) / sqrt(variance + eps) * weight + bias: x [..., n], weight and bias [n].

    Source: Ba, Kiros and Hinton, arXiv:1607.06450.
    """
    n = x.shape[-1]
    centred = x - (row_sum(x) / n)[..., None]
    result = centred / torch.sqrt(row_sum(centred * centred) / n + eps)[..., None]
    if weight is not None:
        result = result * weight
    return result if bias is None else result + bias
