"""Mixtures of experts against plain float64: how they choose, and what they compute."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest
import torch
from block_data import random_blocks
from edgellm_kernels import ops
from edgellm_kernels.planes import Weight
from edgellm_kernels.routing import RouterSpec
from hypothesis import example, given, settings
from hypothesis import strategies as st

Array = npt.NDArray[np.float64]


def logits(seed: int, rows: int, experts: int) -> torch.Tensor:
    return torch.from_numpy(np.random.default_rng(seed).standard_normal((rows, experts)).astype(np.float32) * 2)


def softmax(x: Array) -> Array:
    raised: Array = np.exp(x - x.max())
    return np.asarray(raised / raised.sum())


def plainly(row: Array, spec: RouterSpec, bias: Array | None) -> dict[int, float]:
    """The experts of one row and their weights."""
    scores = row
    if spec.score == "softmax":
        scores = softmax(row)
    elif spec.score == "sigmoid":
        scores = 1 / (1 + np.exp(-row))
    rank = scores + (0 if bias is None else bias)
    size = len(row) // spec.groups
    groups = [range(g * size, (g + 1) * size) for g in range(spec.groups)]
    groups.sort(key=lambda group: -sum(sorted((rank[e] for e in group), reverse=True)[:2]))
    allowed = [expert for group in groups[: spec.groups_used] for expert in group]
    chosen = sorted(allowed, key=lambda expert: -rank[expert])[: spec.top]
    weights = scores[chosen]
    if spec.score == "softmax_top":
        weights = softmax(weights)
    elif spec.renormalise:
        weights = weights / max(weights.sum(), 2.0**-14)
    return {expert: float(weight) * spec.scale for expert, weight in zip(chosen, weights, strict=True)}


SPECS = {
    "mixtral": RouterSpec(2),
    "qwen3moe": RouterSpec(8),
    "qwen3moe, not normalised": RouterSpec(8, renormalise=False),
    "deepseek2": RouterSpec(6, renormalise=False, scale=16.0, groups=8, groups_used=3),
    "deepseek3": RouterSpec(8, score="sigmoid", scale=2.5, groups=8, groups_used=4),
    "over the chosen": RouterSpec(4, score="softmax_top"),
}


@settings(max_examples=60)
@given(st.sampled_from(sorted(SPECS)), st.integers(0, 1000), st.booleans())
@example("mixtral", 514, True)  # the bias wants two experts of whom nothing is left to divide by
def test_choice_and_weights(name: str, seed: int, biased: bool) -> None:
    spec = SPECS[name]
    found = logits(seed, 5, 32)
    bias = logits(seed + 1, 1, 32)[0] * 0.2 if biased else None
    chosen, weights = ops.route(found, spec, bias)
    assert chosen.shape == weights.shape == (5, spec.top)
    assert chosen.dtype == torch.int64
    for row in range(5):
        wanted = plainly(found[row].double().numpy(), spec, None if bias is None else bias.double().numpy())
        assert chosen[row].tolist() == list(wanted)
        np.testing.assert_allclose(weights[row].numpy(), list(wanted.values()), rtol=2e-6)


def test_of_equals_the_lower_expert_is_taken() -> None:
    many, _ = ops.route(torch.zeros(3, 512), RouterSpec(8, groups=4, groups_used=2))
    assert many.tolist() == [list(range(8))] * 3
    chosen, weights = ops.route(torch.zeros(1, 8), RouterSpec(3))
    assert chosen.tolist() == [[0, 1, 2]]
    np.testing.assert_allclose(weights.numpy(), [[1 / 3] * 3], rtol=1e-6)


@pytest.mark.parametrize("kind", ["F16", "Q4_0", "Q6_K"])
def test_every_token_is_computed_by_all_of_its_experts(kind: str) -> None:
    """Ten rows that all want the same expert, and an expert that none wants: none is dropped."""
    raw = random_blocks(kind, 3 * 4 * 256, 256)
    gate, up, down = (
        Weight.from_gguf(torch.from_numpy(part.reshape(-1)), kind, (4, 256, 256)) for part in np.split(raw, 3)
    )
    x = logits(7, 10, 256)
    chosen = torch.tensor([[2, 0]] * 9 + [[3, 2]])
    weights = torch.rand((10, 2), generator=torch.Generator().manual_seed(0))
    g, u, d = (weight.dense().double().numpy() for weight in (gate, up, down))
    wanted = np.zeros((10, 256))
    for row in range(10):
        for expert, weight in zip(chosen[row].tolist(), weights[row].tolist(), strict=True):
            hidden = g[expert] @ x[row].double().numpy()
            hidden = hidden / (1 + np.exp(-np.clip(hidden, -700, None))) * (u[expert] @ x[row].double().numpy())
            wanted[row] += weight * (d[expert] @ hidden)
    found = ops.experts(x, chosen, weights, gate, up, down, "silu").double().numpy()
    assert np.linalg.norm(found - wanted) < 2e-6 * np.linalg.norm(wanted)


@pytest.mark.parametrize(
    ("spec", "experts"),
    [(RouterSpec(9), 8), (RouterSpec(2, groups=3), 8), (RouterSpec(5, groups=4, groups_used=2), 8)],
)
def test_choices_that_cannot_be_made(spec: RouterSpec, experts: int) -> None:
    with pytest.raises(ValueError, match=f"{spec.top} of {experts} experts"):
        ops.route(torch.zeros(1, experts), spec)


def test_specs_that_make_no_sense() -> None:
    with pytest.raises(ValueError, match="0 experts"):
        RouterSpec(0)
    with pytest.raises(ValueError, match="from 3 of 2 groups"):
        RouterSpec(1, groups=2, groups_used=3)
