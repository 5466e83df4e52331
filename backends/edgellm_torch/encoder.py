"""The encoder: whole texts in, a state for each of their tokens out. The texts of a call lie behind each other."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from edgellm_kernels import ops
from edgellm_kernels.rope import Angles, angles
from torch import Tensor

from edgellm_torch.attention import MatMul, rope_spec
from edgellm_torch.config import Dense, Encoder, EncoderLayer, Gated, LayerNorm, WholeText
from edgellm_torch.feed_forward import GatedNetwork
from edgellm_torch.loader import Weights


class Norm:
    """Layer normalisation over the last axis."""

    def __init__(self, part: LayerNorm, weights: Weights) -> None:
        self.weight, self.bias = weights.vectors[part.weight], weights.vector(part.bias)
        self.epsilon = part.epsilon

    def __call__(self, x: Tensor) -> Tensor:
        return ops.layer_norm(x, self.weight, self.bias, self.epsilon)


class WholeTextAttention:
    """x and the result: float32 [rows, width]."""

    def __init__(self, part: WholeText, weights: Weights, device: str) -> None:
        self.part = part
        self.inputs = [MatMul(linear, weights) for linear in part.inputs]
        self.output = MatMul(part.output, weights)
        self.query_norm = Norm(part.query_norm, weights) if part.query_norm else None
        self.key_norm = Norm(part.key_norm, weights) if part.key_norm else None
        self.slopes = torch.tensor(slopes(part.heads, part.alibi), device=device) if part.alibi else None

    def __call__(self, x: Tensor, counts: Sequence[int], turned: Angles | None) -> Tensor:
        part, rows = self.part, x.shape[0]
        found = torch.cat([multiply(x) for multiply in self.inputs], dim=1)
        of_query, of_key = part.heads * part.size, part.kv_heads * part.size
        query, key, value = (each.contiguous() for each in found.split((of_query, of_key, of_key), dim=1))
        if self.query_norm:
            query = self.query_norm(query)
        if self.key_norm:
            key = self.key_norm(key)
        query, key, value = (each.view(rows, -1, part.size) for each in (query, key, value))
        if turned:
            query, key = (ops.rope(heads, turned) for heads in (query, key))
        mixed = ops.varlen_attention(query, key, value, counts, scale=1 / math.sqrt(part.size), slopes=self.slopes)
        return self.output(mixed.reshape(rows, of_query))


class DenseNetwork:
    """down(activation(up(x))), or with a gate that is one half of what `up` makes."""

    def __init__(self, part: Dense, weights: Weights) -> None:
        self.part = part
        self.up, self.down = MatMul(part.up, weights), MatMul(part.down, weights)

    def __call__(self, x: Tensor) -> Tensor:
        made = self.up(x)
        if not self.part.halves:
            return self.down(ops.activate(made, self.part.activation))
        gate, up = (half.contiguous() for half in made.chunk(2, dim=1))
        return self.down(ops.gated(gate, up, self.part.activation))


class Block:
    """One layer."""

    def __init__(self, part: EncoderLayer, weights: Weights, device: str) -> None:
        self.attention = WholeTextAttention(part.attention, weights, device)
        self.attention_norm, self.feed_norm = Norm(part.attention_norm, weights), Norm(part.feed_norm, weights)
        self.second_norm = Norm(part.second_norm, weights) if part.second_norm else None
        feed = part.feed
        self.feed = GatedNetwork(feed, weights) if isinstance(feed, Gated) else DenseNetwork(feed, weights)

    def __call__(self, x: Tensor, counts: Sequence[int], turned: Angles | None) -> Tensor:
        y = self.attention_norm(self.attention(x, counts, turned) + x)
        if self.second_norm:
            y = self.second_norm(y + x)
        return self.feed_norm(self.feed(y) + y)


class EncoderModel:
    """A whole encoder on one device."""

    def __init__(self, encoder: Encoder, weights: Weights, device: str = "cpu") -> None:
        self.device = device
        self.embedding = weights.matrices[encoder.embedding.weight]
        self.positions = weights.matrices[encoder.positions.weight] if encoder.positions else None
        self.rope = rope_spec(encoder.rope, weights) if encoder.rope else None
        self.kind: Tensor | None = None
        if encoder.types:
            first = torch.zeros(1, dtype=torch.int64, device=device)
            self.kind = ops.embed(first, weights.matrices[encoder.types.weight])
        self.norm = Norm(encoder.norm, weights)
        self.blocks = [Block(layer, weights, device) for layer in encoder.layers]

    def __call__(self, tokens: Tensor, counts: Sequence[int]) -> Tensor:
        """States, float32 [rows, width], of int64 tokens [rows] in texts of `counts` rows.

        A text's states do not depend, to the last bit, on the texts beside it.
        """
        positions = torch.cat([torch.arange(count, device=self.device) for count in counts])
        x = ops.embed(tokens, self.embedding)
        if self.kind is not None:
            x = x + self.kind
        if self.positions is not None:
            x = x + ops.embed(positions, self.positions)
        x = self.norm(x)
        turned = angles(self.rope, positions) if self.rope else None
        for block in self.blocks:
            x = block(x, counts, turned)
        return x

    def projected(self, vectors: Tensor) -> Tensor:
        return vectors


def slopes(heads: int, steepest: float) -> list[float]:
    """What a position of distance costs each head's scores: powers of one number, or of its root for heads beyond a
    power of two. Source: Press et al., "ALiBi", arXiv:2108.12409.
    """
    power = 1 << (heads.bit_length() - 1)
    even, odd = 2.0 ** (-steepest / power), 2.0 ** (-steepest / 2 / power)
    return [even ** (head + 1) if head < power else odd ** (2 * (head - power) + 1) for head in range(heads)]
