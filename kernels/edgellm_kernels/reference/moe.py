"""Mixtures of experts: choosing, and computing every token with all of its experts (none is dropped).

Sources: Mixtral, arXiv:2401.04088; DeepSeek-V2, arXiv:2405.04434; DeepSeek-V3, arXiv:2412.19437.
"""

from __future__ import annotations

import math
from typing import Final

import torch
from torch import Tensor

from edgellm_kernels.planes import Weight
from edgellm_kernels.reference.activation import gated
from edgellm_kernels.reference.exact import row_sum, sigmoid, softmax
from edgellm_kernels.reference.linear import linear
from edgellm_kernels.routing import RouterSpec

_LEAST: Final = 6.103515625e-5  # of a sum that is divided by: float16's smallest normal number, as llama.cpp has it


def route(logits: Tensor, spec: RouterSpec, bias: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Experts int64 [rows, top], the best first, and their weights float32 [rows, top], from logits [rows, experts].

    `bias` [experts] is added to the scores when choosing, not to the weights. Of equals, the lower expert is taken.
    """
    experts = logits.shape[1]
    if experts % spec.groups or spec.top > experts // spec.groups * spec.groups_used:
        raise ValueError(f"{spec.top} of {experts} experts in {spec.groups} groups cannot be chosen")
    scores = _scores(logits, spec)
    rank = scores if bias is None else scores + bias
    if spec.groups > 1:
        rank = _best_groups(rank, spec)
    chosen = rank.sort(dim=-1, descending=True, stable=True).indices[:, : spec.top]
    weights = scores.gather(1, chosen)
    if spec.score == "softmax_top":
        weights = softmax(weights)
    elif spec.renormalise:
        weights = weights / row_sum(weights)[:, None].clamp(min=_LEAST)
    return chosen, weights * spec.scale


def experts(x: Tensor, chosen: Tensor, weights: Tensor, gate: Weight, up: Weight, down: Weight, kind: str) -> Tensor:
    """Gated feed-forward layers [experts, …] over x [rows, k], weighted and added in the order of `chosen`: [rows, k].

    gate, up [experts, ff, k]; down [experts, k, ff]; chosen int64 and weights float32 [rows, top].
    """
    top = chosen.shape[1]
    flat = chosen.reshape(-1)
    parts = x.new_empty((flat.numel(), down.n))
    for expert in torch.unique(flat).tolist():
        pairs = (flat == expert).nonzero().squeeze(1)
        rows = x.index_select(0, pairs // top)
        hidden = gated(linear(rows, gate[expert]), linear(rows, up[expert]), kind)
        parts[pairs] = linear(hidden, down[expert])
    parts = parts.view(-1, top, down.n) * weights[..., None]
    total = parts[:, 0]
    for place in range(1, top):
        total = total + parts[:, place]
    return total


def _scores(logits: Tensor, spec: RouterSpec) -> Tensor:
    if spec.score == "softmax":
        return softmax(logits)
    return sigmoid(logits) if spec.score == "sigmoid" else logits


def _best_groups(rank: Tensor, spec: RouterSpec) -> Tensor:
    """`rank` with the experts outside the best groups at -inf."""
    grouped = rank.unflatten(1, (spec.groups, -1))
    best = grouped.sort(dim=-1, descending=True).values
    quality = best[..., 0]
    if best.shape[-1] > 1:
        quality = quality + best[..., 1]
    used = quality.sort(dim=-1, descending=True, stable=True).indices[:, : spec.groups_used]
    left_out = torch.ones_like(quality, dtype=torch.bool).scatter_(1, used, False)
    return grouped.masked_fill(left_out[..., None], -math.inf).flatten(1)
