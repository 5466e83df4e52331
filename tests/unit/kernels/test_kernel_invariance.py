"""A row's bits do not depend on the rows beside it: for every op on rows, with one thread and with two."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import pytest
import torch
from block_data import random_blocks
from edgellm_kernels import ops
from edgellm_kernels.blocks import BLOCKS
from edgellm_kernels.invariance import rows_exact
from edgellm_kernels.planes import Weight
from edgellm_kernels.reference import exact, tiles
from edgellm_kernels.rope import RopeSpec, angles
from edgellm_kernels.routing import RouterSpec

Op = Callable[[torch.Tensor], torch.Tensor]
MOST = 70  # rows


@pytest.fixture(params=[1, 2])
def threads(request: pytest.FixtureRequest) -> Iterator[int]:
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(before)


def assert_company_changes_no_bit(op: Op, x: torch.Tensor) -> None:
    """All rows at once, alone, in chunks, and in another order."""
    together = op(x)
    count = len(x)
    for size in (1, 7, 16, 33):
        parts = [op(x[start : start + size]) for start in range(0, count, size)]
        assert torch.equal(torch.cat(parts), together), f"in chunks of {size}"
    order = torch.randperm(count, generator=torch.Generator().manual_seed(1))
    assert torch.equal(op(x[order]), together[order])
    noise = torch.full_like(x, torch.nan)
    noise[3] = x[3]
    assert torch.equal(op(noise)[3], together[3])


def rows(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def matrix(kind: str, *shape: int) -> Weight:
    raw = random_blocks(kind, torch.Size(shape[:-1]).numel(), shape[-1])
    return Weight.from_gguf(torch.from_numpy(raw.reshape(-1)), kind, shape)


@pytest.mark.usefixtures("threads")
@pytest.mark.parametrize("shape", [(1, 32), (3, 64), (97, 576), (576, 1536), (1000, 256), (64, 4096), (33, 11008)])
def test_linear(shape: tuple[int, int]) -> None:
    weight = matrix("Q4_0", *shape)
    assert_company_changes_no_bit(lambda x: ops.linear(x, weight), rows(MOST, shape[1]))


def test_memory_used_again_belongs_to_no_mode(monkeypatch: pytest.MonkeyPatch) -> None:
    """Steps run in inference mode; a model that is loaded after them is measured outside it."""
    monkeypatch.setattr(tiles._SCRATCH, "floats", {})
    weight, x = matrix("Q6_K", 64, 256), rows(3, 256)
    with torch.inference_mode():
        inside = ops.linear(x, weight)
    assert torch.equal(ops.linear(x, weight), inside)


@pytest.mark.parametrize("kind", BLOCKS)
def test_linear_of_every_block_type(kind: str) -> None:
    weight = matrix(kind, 80, 512)
    assert_company_changes_no_bit(lambda x: ops.linear(x, weight, rows(80, seed=5)), rows(MOST, 512))


# 100 and 77 are no whole vectors: torch's own silu and sigmoid give other bits at the end of such a tensor.
OPS: dict[str, Op] = {
    "rms_norm": lambda x: ops.rms_norm(x, rows(x.shape[1], seed=2), 1e-6),
    "layer_norm": lambda x: ops.layer_norm(x, rows(x.shape[1], seed=2), rows(x.shape[1], seed=3), 1e-6),
    "silu": lambda x: ops.gated(x, x + 1, "silu"),
    "gelu": lambda x: ops.gated(x, x + 1, "gelu"),
    "soft_cap": lambda x: ops.soft_cap(x, 2.0),
    "softmax": ops.softmax,
    "row_sum": exact.row_sum,
    "sigmoid": exact.sigmoid,
    "tanh": exact.tanh,
    "exp": exact.exp,
}


@pytest.mark.parametrize("name", OPS)
@pytest.mark.parametrize("width", [77, 100])
def test_ops_on_rows(name: str, width: int) -> None:
    assert_company_changes_no_bit(OPS[name], rows(MOST, width))


@pytest.mark.usefixtures("threads")
@pytest.mark.parametrize("name", ["rms_norm", "silu", "softmax"])
def test_ops_that_threads_share(name: str) -> None:
    assert_company_changes_no_bit(OPS[name], rows(MOST, 1500))


def test_rope() -> None:
    x = rows(MOST, 3, 64)
    positions = torch.arange(0, 5 * MOST, 5)
    spec = RopeSpec(48, style="neox")
    together = ops.rope(x, angles(spec, positions))
    for row in range(MOST):
        alone = ops.rope(x[row : row + 1], angles(spec, positions[row : row + 1]))
        assert torch.equal(alone[0], together[row])


@pytest.mark.usefixtures("threads")
def test_experts_and_their_choice() -> None:
    gate, up, down = matrix("Q4_K", 6, 96, 256), matrix("Q6_K", 6, 96, 256), matrix("Q8_0", 6, 256, 96)
    router = Weight.from_tensor(rows(6, 256, seed=9))

    def layer(x: torch.Tensor) -> torch.Tensor:
        chosen, weights = ops.route(ops.linear(x, router), RouterSpec(2))
        return ops.experts(x, chosen, weights, gate, up, down, "silu")

    assert_company_changes_no_bit(layer, rows(MOST, 256))


def test_where_places_differ_rows_are_multiplied_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    weight = matrix("Q4_1", 70, 64)
    x = rows(20, 64)
    whole = ops.linear(x, weight)
    sizes = []
    real = torch.mm

    def mm(left: torch.Tensor, right: torch.Tensor, **rest: torch.Tensor) -> torch.Tensor:
        sizes.append(right.shape[1])
        return real(left, right, **rest)

    monkeypatch.setattr(tiles, "place_free", lambda *_: False)
    monkeypatch.setattr(torch, "mm", mm)
    assert not rows_exact([weight])
    single = ops.linear(x, weight)
    assert set(sizes) == {1}
    torch.testing.assert_close(single, whole, rtol=1e-5, atol=1e-4)
    assert_company_changes_no_bit(lambda rows: ops.linear(rows, weight), x)


def test_places_are_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    """Made-up products whose bits depend on the place, or on the other rows, are found out."""

    def place_free(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
        """Every element by itself, in the order of the sum."""
        found = left[:, :1] * right[:1]
        for k in range(1, len(right)):
            found = found + left[:, k : k + 1] * right[k : k + 1]
        return found

    def by_place(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
        found = place_free(left, right)
        found[:, -1] = torch.nextafter(found[:, -1], torch.tensor(torch.inf))
        return found

    def by_company(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
        return place_free(left, right) + right.sum() * 1e-3

    measure = tiles.place_free.__wrapped__
    monkeypatch.setattr(torch, "mm", place_free)
    assert measure(64, 96, "cpu", 1)
    for wrong in (by_place, by_company):
        monkeypatch.setattr(torch, "mm", wrong)
        assert not measure(64, 96, "cpu", 1)


@pytest.mark.usefixtures("threads")
def test_this_machine_multiplies_whole_tiles() -> None:
    """Shapes of real models. Where it does not, linear layers are several times slower, and rows keep their bits."""
    shapes = [(576, 576), (192, 576), (1536, 576), (576, 1536), (2048, 640), (640, 2048), (4096, 4096), (1024, 14336)]
    weights = [Weight.from_tensor(rows(*shape)) for shape in shapes]
    if rows_exact(weights):
        return
    for weight in weights:
        assert_company_changes_no_bit(partial(ops.linear, weight=weight), rows(20, weight.k))
    pytest.skip("on this CPU torch's products depend on a row's place: rows are multiplied one by one, and slowly")
