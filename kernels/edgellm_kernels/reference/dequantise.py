"""Quantised weights as float32, equal to ggml's own results to the last bit."""

from __future__ import annotations

from torch import Tensor

from edgellm_kernels.planes import Weight


def dequantise(weight: Weight) -> Tensor:
    """All values, float32 of the weight's shape."""
    return weight.dense()


def embed(tokens: Tensor, weight: Weight) -> Tensor:
    """The rows of `weight` [vocabulary, k] that int64 `tokens` [rows] name: float32 [rows, k]."""
    return weight.take(tokens).dense()
