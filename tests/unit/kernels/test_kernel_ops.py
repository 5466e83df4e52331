"""Ops against plain float64: linear layers, norms, activations, rope, LoRA, and the functions they are made of."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt
import pytest
import torch
from block_data import random_blocks
from edgellm_kernels import ops
from edgellm_kernels.adapters import Adapter
from edgellm_kernels.blocks import BLOCKS
from edgellm_kernels.planes import Weight
from edgellm_kernels.reference import exact
from edgellm_kernels.reference.circle import circle
from edgellm_kernels.rope import RopeSpec, angles
from hypothesis import given, settings
from hypothesis import strategies as st

Array = npt.NDArray[np.float64]


def rows(seed: int, *shape: int) -> torch.Tensor:
    return torch.from_numpy(np.random.default_rng(seed).standard_normal(shape).astype(np.float32))


def wide(x: torch.Tensor) -> Array:
    found: Array = x.double().numpy()
    return found


def assert_near(found: torch.Tensor, wanted: Array, error: float = 1e-6) -> None:
    """Relative to the norm of all of it."""
    assert found.dtype == torch.float32
    assert tuple(found.shape) == wanted.shape
    scale = np.linalg.norm(wanted)
    assert np.linalg.norm(wide(found) - wanted) <= error * scale if scale else not found.any()


@pytest.mark.parametrize("kind", BLOCKS)
def test_linear_with_every_block_type(kind: str) -> None:
    raw = random_blocks(kind, 40, 512)
    weight = Weight.from_gguf(torch.from_numpy(raw.reshape(-1)), kind, (40, 512))
    x, bias = rows(1, 5, 512), rows(2, 40)
    assert_near(ops.linear(x, weight, bias), wide(x) @ wide(weight.dense()).T + wide(bias))


@settings(max_examples=60)
@given(st.integers(0, 40), st.integers(1, 130), st.integers(1, 300), st.integers(0, 1000))
def test_linear_of_any_size(count: int, n: int, k: int, seed: int) -> None:
    x, matrix = rows(seed, count, k), rows(seed + 1, n, k)
    found = ops.linear(x, Weight.from_tensor(matrix))
    assert found.shape == (count, n)
    assert (np.abs(wide(found) - wide(x) @ wide(matrix).T) <= 1e-6 * np.abs(wide(x)) @ np.abs(wide(matrix)).T).all()


def test_linear_of_several_tiles() -> None:
    raw = random_blocks("Q4_K", 700, 1024)
    weight = Weight.from_gguf(torch.from_numpy(raw.reshape(-1)), "Q4_K", (700, 1024))
    x = rows(3, 33, 1024)
    assert_near(ops.linear(x, weight), wide(x) @ wide(weight.dense()).T)


def test_linear_refuses_what_does_not_fit() -> None:
    weight = Weight.from_tensor(rows(0, 4, 8))
    with pytest.raises(ValueError, match="rows of 7 do not fit a weight of shape"):
        ops.linear(rows(0, 2, 7), weight)
    with pytest.raises(ValueError, match="do not fit"):
        ops.head_linear(rows(0, 2, 3, 8), weight)


def test_each_head_has_a_matrix_of_its_own() -> None:
    x, matrices = rows(0, 9, 3, 20), rows(1, 3, 7, 20)
    found = ops.head_linear(x, Weight.from_tensor(matrices))
    assert_near(found, np.einsum("rhk,hnk->rhn", wide(x), wide(matrices)))


@settings(max_examples=60)
@given(st.integers(1, 20), st.integers(1, 700), st.sampled_from([1e-30, 1e-3, 1.0, 1e4]), st.booleans())
def test_norms(count: int, n: int, size: float, plain: bool) -> None:
    x = rows(n, count, n) * size
    weight, bias = (None, None) if plain else (rows(1, n), rows(2, n))
    by, plus = (1.0, 0.0) if weight is None or bias is None else (wide(weight), wide(bias))
    eps = 1e-5
    wanted = wide(x) / np.sqrt((wide(x) ** 2).mean(-1, keepdims=True) + eps) * by
    assert_near(ops.rms_norm(x, weight, eps), wanted)
    centred = wide(x) - wide(x).mean(-1, keepdims=True)
    if n > 1:  # of one value nothing is left but rounding
        wanted = centred / np.sqrt((centred**2).mean(-1, keepdims=True) + eps) * by + plus
        assert_near(ops.layer_norm(x, weight, bias, eps), wanted, 3e-6)


def test_heads_are_normed_each_for_itself() -> None:
    x, weight = rows(0, 3, 4, 64), rows(1, 64)
    wanted = wide(x) / np.sqrt((wide(x) ** 2).mean(-1, keepdims=True) + 1e-6) * wide(weight)
    assert_near(ops.rms_norm(x, weight, 1e-6), wanted)


def test_activations() -> None:
    x, up = rows(0, 50, 70) * 6, rows(1, 50, 70)
    y = wide(x)
    silu = y / (1 + np.exp(-y))
    gelu = 0.5 * y * (1 + np.tanh(math.sqrt(2 / math.pi) * (y + 0.044715 * y**3)))
    assert_near(ops.gated(x, up, "silu"), silu * wide(up))
    assert_near(ops.gated(x, up, "gelu"), gelu * wide(up))
    assert_near(ops.activate(x, "relu"), np.maximum(y, 0))
    assert_near(ops.soft_cap(x * 10, 30.0), 30 * np.tanh(y * 10 / 30))
    assert not ops.activate(torch.tensor([-1000.0, -100.0]), "silu").any()
    with pytest.raises(ValueError, match="no activation swish; there are silu, gelu, relu"):
        ops.activate(x, "swish")


def test_exponentials_to_two_parts_in_ten_million() -> None:
    x = torch.linspace(-86.9, 88.2, 300_001)
    np.testing.assert_allclose(wide(exact.exp(x)), np.exp(wide(x)), rtol=2e-7)
    np.testing.assert_allclose(wide(exact.sigmoid(x)), 1 / (1 + np.exp(-wide(x))), rtol=3e-7)
    near = torch.cat((x / 40, torch.logspace(-30, 0, 1000)))
    np.testing.assert_allclose(wide(exact.tanh(near)), np.tanh(wide(near)), rtol=4e-7)


def test_ends_of_the_range() -> None:
    inf, nan = math.inf, math.nan
    x = torch.tensor([-inf, -90.0, 0.0, 90.0, inf, nan])
    np.testing.assert_array_equal(exact.exp(x), [0, 0, 1, inf, inf, nan])
    np.testing.assert_array_equal(exact.tanh(x), [-1, -1, 0, 1, 1, nan])
    np.testing.assert_array_equal(exact.sigmoid(x), [0, 0, 0.5, 1, 1, nan])


@settings(max_examples=40)
@given(st.integers(1, 12), st.integers(1, 1100), st.integers(0, 1000))
def test_sums_and_softmax(count: int, n: int, seed: int) -> None:
    x = rows(seed, count, n) * 5
    np.testing.assert_allclose(
        wide(exact.row_sum(x)), wide(x).sum(-1), rtol=0, atol=1e-6 * np.abs(wide(x)).sum(-1).max()
    )
    raised = np.exp(wide(x) - wide(x).max(-1, keepdims=True))
    share = raised / raised.sum(-1, keepdims=True)
    assert_near(ops.softmax(x), share)


def turned(x: Array, angles: Array, style: str, magnitude: float = 1.0) -> Array:
    """x [rows, heads, size] by angles [rows, pairs], written out pair by pair."""
    result = x.copy()
    pairs = angles.shape[1]
    for row, head, pair in np.ndindex(x.shape[0], x.shape[1], pairs):
        a, b = (2 * pair, 2 * pair + 1) if style == "interleaved" else (pair, pair + pairs)
        cosine, sine = math.cos(angles[row, pair]) * magnitude, math.sin(angles[row, pair]) * magnitude
        result[row, head, a] = x[row, head, a] * cosine - x[row, head, b] * sine
        result[row, head, b] = x[row, head, a] * sine + x[row, head, b] * cosine
    return result


POSITIONS = torch.tensor([0, 1, 300, 7, 70_000])


@pytest.mark.parametrize("style", ["interleaved", "neox"])
@pytest.mark.parametrize("dims", [16, 12])
def test_rope_turns_pairs_and_leaves_the_rest(style: str, dims: int) -> None:
    x = rows(0, len(POSITIONS), 3, 16)
    spec = RopeSpec(dims, base=500_000.0, style="neox" if style == "neox" else "interleaved")
    frequencies = 500_000.0 ** (-np.arange(0, dims, 2) / dims)
    found = ops.rope(x, angles(spec, POSITIONS))
    assert_near(found, turned(wide(x), POSITIONS.numpy()[:, None] * frequencies, style))
    assert torch.equal(found[..., dims:], x[..., dims:])


def test_linear_scaling_and_frequency_factors() -> None:
    x = rows(0, len(POSITIONS), 1, 8)
    factors = (1.0, 2.0, 8.0, 3.5)
    spec = RopeSpec(8, style="neox", scaling="linear", factor=4.0, factors=factors)
    frequencies = 10000.0 ** (-np.arange(0, 8, 2) / 8) / np.array(factors) / 4
    wanted = turned(wide(x), POSITIONS.numpy()[:, None] * frequencies, "neox")
    assert_near(ops.rope(x, angles(spec, POSITIONS)), wanted)


def test_yarn_as_ggml_computes_it() -> None:
    """`ggml_rope_yarn`, written out: the ramp, and the magnitude."""
    dims, base, factor, context, fast, slow = 64, 10000.0, 40.0, 4096, 32.0, 1.0
    x = rows(0, len(POSITIONS), 2, dims)

    def dimension(turns: float) -> float:
        return dims * math.log(context / (turns * 2 * math.pi)) / (2 * math.log(base))

    low, high = max(0, math.floor(dimension(fast))), min(dims - 1, math.ceil(dimension(slow)))
    turns = np.empty((len(POSITIONS), dims // 2))
    for row, pair in np.ndindex(turns.shape):
        kept = int(POSITIONS[row]) * base ** (-2 * pair / dims)
        ramp = 1 - min(1, max(0, (pair - low) / max(0.001, high - low)))
        turns[row, pair] = kept / factor * (1 - ramp) + kept * ramp
    spec = RopeSpec(dims, base, scaling="yarn", factor=factor, original_context=context, attention_factor=0.7)
    magnitude = 0.7 * (1 + 0.1 * math.log(factor))
    assert_near(ops.rope(x, angles(spec, POSITIONS)), turned(wide(x), turns, "interleaved", magnitude))
    assert 0 < low < high < dims // 2  # the ramp is in the middle, so that all of it is tried


def test_angles_do_not_depend_on_the_other_rows() -> None:
    for dims in (6, 32, 128):
        spec = RopeSpec(dims, attention_factor=0.7)
        for position in (0, 3, 255, 5000, 131_071):
            alone = angles(spec, torch.tensor([position]))
            together = angles(spec, torch.tensor([5000, position, 77, 1_000_000, 3]))
            assert torch.equal(alone.cosine[0], together.cosine[1])
            assert torch.equal(alone.sine[0], together.sine[1])


def test_cosine_and_sine_in_float64() -> None:
    """Over many turns, and at every edge between quarters; rounded once, they are the nearest float32."""
    numbers = np.random.default_rng(3)
    quarters = np.arange(-9, 400_000) * (np.pi / 4)
    angle = np.concatenate([numbers.uniform(-10, 10, 9999), numbers.uniform(0, 1e7, 99_999), quarters, [0.0]])
    cosine, sine = (part.numpy() for part in circle(torch.from_numpy(angle)))
    for found, wanted in ((cosine, np.cos(angle)), (sine, np.sin(angle))):
        assert np.abs(found - wanted).max() < 1e-15
    assert (cosine.astype(np.float32) == np.cos(angle).astype(np.float32)).all()


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"dims": 7}, "even number"),
        ({"dims": 8, "factor": 0.0}, "must be positive"),
        ({"dims": 8, "factors": (1.0,)}, "1 frequency factors for 4 frequencies"),
        ({"dims": 8, "scaling": "yarn"}, "original_context_length"),
    ],
)
def test_rope_that_makes_no_sense_is_refused(wrong: dict[str, object], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        RopeSpec(**wrong)  # type: ignore[arg-type]


def test_rope_of_heads_that_are_too_short() -> None:
    with pytest.raises(ValueError, match="heads of 4 values cannot be turned in 8"):
        ops.rope(rows(0, 1, 1, 4), angles(RopeSpec(8), torch.tensor([0])))


def test_each_row_has_its_adapter() -> None:
    x = rows(0, 7, 12)
    adapters = [Adapter(rows(1, 2, 12), rows(2, 9, 2), 0.5), Adapter(rows(3, 5, 12), rows(4, 9, 5), 2.0)]
    index = torch.tensor([1, -1, 0, 0, 1, -1, 0])
    wanted = np.zeros((7, 9))
    for row, number in enumerate(index.tolist()):
        if number >= 0:
            chosen = adapters[number]
            wanted[row] = wide(chosen.b) @ (wide(chosen.a) @ wide(x[row])) * chosen.scale
    assert_near(ops.lora(x, adapters, index), wanted)
    with pytest.raises(ValueError, match="adapter 2 of 2"):
        ops.lora(x, adapters, torch.full((7,), 2))
    with pytest.raises(ValueError, match="no adapters"):
        ops.lora(x, [], index)
    with pytest.raises(ValueError, match="does not fit together"):
        Adapter(rows(0, 2, 12), rows(0, 9, 3), 1.0)
