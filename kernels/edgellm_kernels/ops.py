"""Every op, computed by what `dispatch` chooses for its device, type and size.

Rows come first in every shape and are float32. A row's result has the same bits whatever else is in the call.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from edgellm_kernels.adapters import Adapter
from edgellm_kernels.dispatch import Case, implementation
from edgellm_kernels.pages import Pages, Ragged
from edgellm_kernels.planes import Weight
from edgellm_kernels.rope import Angles
from edgellm_kernels.routing import RouterSpec


def _case(x: Tensor, weight: str = "") -> Case:
    rows = x.shape[0] if x.dim() else 1
    return Case(x.device.type, str(x.dtype).removeprefix("torch."), weight, 1 << max(0, rows - 1).bit_length())


def dequantise(weight: Weight) -> Tensor:
    """All values of a weight, float32 of its shape."""
    return implementation("dequantise", Case(weight.device.type, weight=weight.type))(weight)


def embed(tokens: Tensor, weight: Weight) -> Tensor:
    """The rows of weight [vocabulary, k] that int64 tokens [rows] name: [rows, k]."""
    return implementation("embed", Case(weight.device.type, weight=weight.type))(tokens, weight)


def linear(x: Tensor, weight: Weight, bias: Tensor | None = None) -> Tensor:
    """x [rows, k] times weight [n, k] transposed, plus bias [n]: [rows, n]."""
    return implementation("linear", _case(x, weight.type))(x, weight, bias)


def head_linear(x: Tensor, weight: Weight) -> Tensor:
    """Each head by a matrix of its own: x [rows, heads, k], weight [heads, n, k] -> [rows, heads, n]."""
    return implementation("head_linear", _case(x, weight.type))(x, weight)


def rms_norm(x: Tensor, weight: Tensor | None, eps: float) -> Tensor:
    """x / sqrt(mean(x^2) + eps) * weight over the last axis: x [..., n], weight [n]."""
    return implementation("rms_norm", _case(x))(x, weight, eps)


def layer_norm(x: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float) -> Tensor:
    """(x - mean) / sqrt(variance + eps) * weight + bias over the last axis: x [..., n], weight and bias [n]."""
    return implementation("layer_norm", _case(x))(x, weight, bias, eps)


def rope(x: Tensor, angles: Angles) -> Tensor:
    """x [rows, heads, size] turned by the angles of its rows: a copy."""
    return implementation("rope", _case(x))(x, angles)


def kv_write(pages: Pages, k: Tensor, v: Tensor | None, slots: Tensor) -> None:
    """Put k and v [rows, kv_heads, size] into int64 slots [rows]; v is None where keys hold the values."""
    implementation("kv_write", _case(k))(pages, k, v, slots)


def attention(
    q: Tensor, pages: Pages, ragged: Ragged, *, scale: float, window: int = 0, soft_cap: float = 0.0
) -> Tensor:
    """q [rows, heads, k_size] over its sequences' keys and values, its own included: [rows, heads, v_size]."""
    call = implementation("attention", _case(q, pages.kind))
    return call(q, pages, ragged, scale=scale, window=window, soft_cap=soft_cap)


def varlen_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    counts: Sequence[int],
    *,
    scale: float,
    slopes: Tensor | None = None,
    reach: int | None = None,
) -> Tensor:
    """q [rows, heads, k_size] over the keys and values of its own text: [rows, heads, v_size]; no pages are kept.

    `counts`: rows of each text; `slopes` [heads]: what a position of distance costs a score; `reach`: how far
    a row sees, on either side; None: all.
    """
    call = implementation("varlen_attention", _case(q))
    return call(q, k, v, counts, scale=scale, slopes=slopes, reach=reach)


def varlen_mean(x: Tensor, counts: Sequence[int]) -> Tensor:
    """The mean of the rows of each text: x [rows, n] -> [texts, n]; `counts`: rows of each."""
    return implementation("varlen_mean", _case(x))(x, counts)


def activate(x: Tensor, kind: str) -> Tensor:
    """ "silu", "gelu" (tanh form) or "relu" of x, any shape."""
    return implementation("activate", _case(x))(x, kind)


def gated(gate: Tensor, up: Tensor, kind: str) -> Tensor:
    """activate(gate) * up."""
    return implementation("gated", _case(gate))(gate, up, kind)


def soft_cap(x: Tensor, cap: float) -> Tensor:
    """cap * tanh(x / cap)."""
    return implementation("soft_cap", _case(x))(x, cap)


def route(logits: Tensor, spec: RouterSpec, bias: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Experts int64 [rows, top] and weights [rows, top] from logits [rows, experts]; bias only where it is chosen."""
    found: tuple[Tensor, Tensor] = implementation("route", _case(logits))(logits, spec, bias)
    return found


def experts(x: Tensor, chosen: Tensor, weights: Tensor, gate: Weight, up: Weight, down: Weight, kind: str) -> Tensor:
    """x [rows, k] through its chosen experts, weighted and added: gate, up [experts, ff, k], down [experts, k, ff]."""
    call = implementation("experts", _case(x, gate.type))
    return call(x, chosen, weights, gate, up, down, kind)


def lora(x: Tensor, adapters: Sequence[Adapter], index: Tensor) -> Tensor:
    """What the adapters that int64 index [rows] names (-1: none) add: [rows, n]."""
    return implementation("lora", _case(x))(x, adapters, index)


def softmax(x: Tensor) -> Tensor:
    """Over the last axis."""
    return implementation("softmax", _case(x))(x)
