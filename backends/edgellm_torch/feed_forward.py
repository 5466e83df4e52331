"""Feed-forward networks: gated, and mixtures of gated experts."""

from __future__ import annotations

from edgellm_kernels import ops
from edgellm_kernels.routing import RouterSpec
from torch import Tensor

from edgellm_torch.attention import MatMul
from edgellm_torch.config import Experts, Gated
from edgellm_torch.loader import Weights


class GatedNetwork:
    """down(activation(gate(x)) * up(x)); x and the result: float32 [rows, width]."""

    def __init__(self, part: Gated, weights: Weights) -> None:
        self.gate, self.up, self.down = (MatMul(linear, weights) for linear in (part.gate, part.up, part.down))
        self.activation = part.activation

    def __call__(self, x: Tensor) -> Tensor:
        return self.down(ops.gated(self.gate(x), self.up(x), self.activation))


class ExpertNetwork:
    """The experts that a router chooses for each row, weighed; no row is dropped."""

    def __init__(self, part: Experts, weights: Weights) -> None:
        self.router = MatMul(part.router, weights)
        self.correction = weights.vector(part.correction)
        self.gate, self.up, self.down = (weights.matrices[linear.weight] for linear in (part.gate, part.up, part.down))
        self.activation = part.activation
        self.spec = RouterSpec(
            top=part.used,
            score=part.score,
            renormalise=part.renormalise,
            scale=part.scale,
            groups=part.groups,
            groups_used=part.groups_used,
        )
        self.shared = GatedNetwork(part.shared, weights) if part.shared else None

    def __call__(self, x: Tensor) -> Tensor:
        chosen, shares = ops.route(self.router(x), self.spec, self.correction)
        mixed = ops.experts(x, chosen, shares, self.gate, self.up, self.down, self.activation)
        return mixed + self.shared(x) if self.shared else mixed
