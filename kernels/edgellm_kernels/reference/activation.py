"""Activations of feed-forward layers, and soft caps."""

from __future__ import annotations

from math import pi, sqrt

from torch import Tensor

from edgellm_kernels.reference.exact import sigmoid, tanh

KINDS = ("silu", "gelu", "relu")


def activate(x: Tensor, kind: str) -> Tensor:
    """silu: x * sigmoid(x); gelu: in its tanh form, as Gemma's; relu. Any shape."""
    if kind == "silu":
        return sigmoid(x).mul_(x)
    if kind == "gelu":
        inner = (x * x * x * 0.044715 + x) * sqrt(2 / pi)
        return tanh(inner).add_(1.0).mul_(x).mul_(0.5)
    if kind == "relu":
        return x.clamp(min=0.0)
    raise ValueError(f"there is no activation {kind}; there are {', '.join(KINDS)}")


def gated(gate: Tensor, up: Tensor, kind: str) -> Tensor:
    """activate(gate) * up. Source: Shazeer, arXiv:2002.05202."""
    return activate(gate, kind).mul_(up)


def soft_cap(x: Tensor, cap: float) -> Tensor:
    """cap * tanh(x / cap): nearly x where it is small, and never beyond the cap. Source: Gemma 2, arXiv:2408.00118."""
    return tanh(x / cap).mul_(cap)
