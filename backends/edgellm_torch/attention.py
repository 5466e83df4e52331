"""Attention layers: from a decoder's description and its weights to something that runs."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from edgellm_kernels import ops
from edgellm_kernels.pages import Pages, Ragged
from edgellm_kernels.rope import Angles, RopeSpec, angles
from torch import Tensor

from edgellm_torch.config import Attention, Latent, Linear, Norm, Rope
from edgellm_torch.loader import Weights


def rope_spec(rope: Rope, weights: Weights) -> RopeSpec:
    """What the kernels call it; with the frequency factors, which are a tensor of the file."""
    factors = weights.vector(rope.factors)
    return RopeSpec(
        dims=rope.dims,
        base=rope.base,
        style=rope.style,
        scaling=rope.scaling,
        factor=rope.factor,
        original_context=rope.original_context,
        attention_factor=rope.attention_factor,
        beta_fast=rope.beta_fast,
        beta_slow=rope.beta_slow,
        factors=None if factors is None else tuple(factors.tolist()),
    )


class Step:
    """Who is in a step, for layers of one window: positions and slots of all rows, and where their keys lie."""

    def __init__(self, ragged: Ragged, positions: Tensor, slots: Tensor) -> None:
        self.ragged = ragged
        self.positions = positions
        self.slots = slots
        self._angles: dict[RopeSpec, Angles] = {}

    def to(self, device: str) -> Step:
        """The same step for layers on another device; itself where it is there."""
        if self.positions.device == torch.device(device):
            return self
        return Step(self.ragged.to(device), self.positions.to(device), self.slots.to(device))

    def angles(self, spec: RopeSpec) -> Angles:
        """Of all rows; made once for all layers."""
        if spec not in self._angles:
            self._angles[spec] = angles(spec, self.positions)
        return self._angles[spec]


class MatMul:
    """x times a matrix of the file, and its bias."""

    def __init__(self, part: Linear, weights: Weights) -> None:
        self.weight = weights.matrices[part.weight]
        self.bias = weights.vector(part.bias)

    def __call__(self, x: Tensor) -> Tensor:
        return ops.linear(x, self.weight, self.bias)


class RMSNorm:
    """Over the last axis."""

    def __init__(self, part: Norm, weights: Weights) -> None:
        self.weight = weights.vectors[part.weight]
        self.epsilon = part.epsilon

    def __call__(self, x: Tensor) -> Tensor:
        return ops.rms_norm(x, self.weight, self.epsilon)


class GroupedAttention:
    """Queries of several heads share a key. x and the result: float32 [rows, width]."""

    def __init__(self, part: Attention, weights: Weights) -> None:
        self.part = part
        self.query, self.key, self.value, self.output = (
            MatMul(linear, weights) for linear in (part.query, part.key, part.value, part.output)
        )
        self.query_norm = RMSNorm(part.query_norm, weights) if part.query_norm else None
        self.key_norm = RMSNorm(part.key_norm, weights) if part.key_norm else None
        self.rope = rope_spec(part.rope, weights) if part.rope else None

    def __call__(self, x: Tensor, pages: Pages, step: Step) -> Tensor:
        part = self.part
        query, key, value = self._inputs(x, step.angles(self.rope) if self.rope else None)
        ops.kv_write(pages, key, value, step.slots)
        mixed = ops.attention(query, pages, step.ragged, scale=part.scale, window=part.window, soft_cap=part.soft_cap)
        return self.output(mixed.reshape(x.shape[0], -1))

    def both_ways(self, x: Tensor, counts: Sequence[int], turned: Angles | None) -> Tensor:
        """Over whole texts of `counts` rows, of which nothing is kept: with a window, half of it on either side."""
        query, key, value = self._inputs(x, turned)
        reach = self.part.window // 2 if self.part.window else None
        mixed = ops.varlen_attention(query, key, value, counts, scale=self.part.scale, reach=reach)
        return self.output(mixed.reshape(x.shape[0], -1))

    def _inputs(self, x: Tensor, turned: Angles | None) -> tuple[Tensor, Tensor, Tensor]:
        part, rows = self.part, x.shape[0]
        query = self.query(x).view(rows, part.heads, part.key_size)
        key = self.key(x).view(rows, part.kv_heads, part.key_size)
        value = self.value(x).view(rows, part.kv_heads, part.value_size)
        if self.query_norm and self.key_norm:
            query, key = self.query_norm(query), self.key_norm(key)
        if turned:
            query, key = ops.rope(query, turned), ops.rope(key, turned)
        return query, key, value


class LatentAttention:
    """Multi-head latent attention with its projections absorbed: all heads attend to one compressed key."""

    def __init__(self, part: Latent, weights: Weights) -> None:
        self.part = part
        self.query_down = MatMul(part.query_down, weights) if part.query_down else None
        self.query_norm = RMSNorm(part.query_norm, weights) if part.query_norm else None
        self.query = MatMul(part.query, weights)
        self.key_down, self.key_norm = MatMul(part.key_down, weights), RMSNorm(part.key_norm, weights)
        self.up_keys = weights.matrices[part.up_keys.weight]
        self.up_values = weights.matrices[part.up_values.weight]
        self.output = MatMul(part.output, weights)
        self.rope = rope_spec(part.rope, weights)

    def __call__(self, x: Tensor, pages: Pages, step: Step) -> Tensor:
        part, rows = self.part, x.shape[0]
        query = self._query(x).view(rows, part.heads, part.plain_size + part.rope_size)
        plain, turned = query[..., : part.plain_size], query[..., part.plain_size :]
        lifted = ops.head_linear(plain.contiguous(), self.up_keys)
        turned = ops.rope(turned.contiguous(), step.angles(self.rope))
        ops.kv_write(pages, self._key(x, step), None, step.slots)
        mixed = ops.attention(torch.cat((lifted, turned), -1), pages, step.ragged, scale=part.scale, window=part.window)
        values = ops.head_linear(mixed, self.up_values)
        return self.output(values.reshape(rows, part.heads * part.value_size))

    def _query(self, x: Tensor) -> Tensor:
        if self.query_down:
            x = self.query_down(x)
        return self.query(self.query_norm(x) if self.query_norm else x)

    def _key(self, x: Tensor, step: Step) -> Tensor:
        """[rows, 1, rank + rope_size]: the compressed key, normalised, then what carries the position."""
        both = self.key_down(x)
        compressed = self.key_norm(both[:, : self.part.rank].contiguous())
        turned = ops.rope(both[:, None, self.part.rank :].contiguous(), step.angles(self.rope))
        return torch.cat((compressed[:, None], turned), -1)
