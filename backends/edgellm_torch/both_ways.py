"""A decoder whose tokens see what follows them: whole texts in, a state for each of their tokens out."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import torch
from edgellm_kernels.rope import Angles, RopeSpec, angles
from torch import Tensor

from edgellm_torch.attention import GroupedAttention, MatMul
from edgellm_torch.config import BothWays
from edgellm_torch.loader import Weights
from edgellm_torch.model import Model, Stage


class BothWaysModel:
    """On one device."""

    def __init__(self, parts: BothWays, weights: Weights, device: str) -> None:
        self.device = device
        self._stage = Stage(device, parts.decoder.layers, weights)
        self._model = Model(parts.decoder, [self._stage])
        self._dense = [MatMul(linear, weights) for linear in parts.dense]

    def __call__(self, tokens: Tensor, counts: Sequence[int]) -> Tensor:
        """States, float32 [rows, width], of int64 tokens [rows] in texts of `counts` rows."""
        positions = torch.cat([torch.arange(count, device=self.device) for count in counts])
        made: dict[RopeSpec, Angles] = {}
        x = self._model.embedded(tokens)
        for block in self._stage.blocks:
            attention = block.attention
            assert isinstance(attention, GroupedAttention)
            if attention.rope and attention.rope not in made:
                made[attention.rope] = angles(attention.rope, positions)
            turned = made[attention.rope] if attention.rope else None
            x = block(x, partial(attention.both_ways, counts=counts, turned=turned))
        return self._model.norm(x)

    def projected(self, vectors: Tensor) -> Tensor:
        for multiply in self._dense:
            vectors = multiply(vectors)
        return vectors
