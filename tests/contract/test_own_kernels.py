"""Our kernels inside llama.cpp (`kernels/ggml/`): what they compute, to float32, and that rows keep to themselves."""

from __future__ import annotations

from typing import Any

import gguf
import numpy as np
import numpy.typing as npt
import pytest
from edgellm_llamacpp.repacking import cpu_flags, own_attention, own_kernels
from ggml_ops import F16, Q4_0, Q8_0, Floats, Ggml, Halves

KINDS = ("Q4_0", "Q4_1", "Q8_0", "Q4_K", "Q5_K", "Q6_K")
INPUTS = (1, 2, 3, 4, 7, 8, 15, 70)  # every size of the groups that are taken at once, and more than one part

pytestmark = pytest.mark.skipif("avx2" not in cpu_flags(), reason="kernels for x86 CPUs with AVX2")


@pytest.fixture(scope="module")
def ggml() -> Ggml:
    assert own_kernels(), "this build of llama.cpp lacks edgellm's kernels: run `make setup`"
    assert own_attention()
    return Ggml()


def rounded(x: Floats) -> npt.NDArray[np.float64]:
    """What the kernels see of their inputs: eight bits, a scale for each 32."""
    blocks = x.reshape(*x.shape[:-1], -1, 32)
    most = np.abs(blocks).max(-1, keepdims=True)
    scale = np.divide(np.float32(127), most, out=np.zeros_like(most), where=most > 0)
    codes = np.rint(blocks * scale).astype(np.float64)
    products: npt.NDArray[np.float64] = codes * (most / np.float32(127))
    return products.reshape(x.shape)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("rows", "width"), [(16, 256), (48, 768), (192, 1536)])
def test_products(ggml: Ggml, kind: str, rows: int, width: int) -> None:
    random = np.random.default_rng(rows)
    number = gguf.GGMLQuantizationType[kind]
    matrix = ggml.quantised(number, random.standard_normal((rows, width), np.float32))
    exact = gguf.dequantize(matrix, number).astype(np.float64)
    x = random.standard_normal((max(INPUTS), width), np.float32) * np.float32(3)
    x[1, 32:96] = 0  # a block of nothing
    x[2] *= np.float32(1e-30)
    x[3] *= np.float32(1e20)
    alone = ggml.product(number, matrix, x[:1], threads=1)
    for count in INPUTS:
        made = ggml.product(number, matrix, x[:count], threads=1 + count % 2)
        expected = rounded(x[:count]) @ exact.T
        scale = np.abs(rounded(x[:count])) @ np.abs(exact).T
        assert (np.abs(made - expected) <= 2e-6 * scale).all()
        assert (made[:1] == alone).all()
        for at in range(count - count % 5, count):
            assert (made[at] == ggml.product(number, matrix, x[at : at + 1], threads=2)[0]).all()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("odd", [np.nan, np.inf, -np.inf])
def test_what_is_no_number_shows_in_every_product(ggml: Ggml, kind: str, odd: float) -> None:
    """Of its own input, and of no other: a model that breaks down is to be noticed."""
    random = np.random.default_rng(3)
    number = gguf.GGMLQuantizationType[kind]
    matrix = ggml.quantised(number, random.standard_normal((32, 512), np.float32))
    x = random.standard_normal((9, 512), np.float32)
    alone = ggml.product(number, matrix, x, threads=1)
    x[4, 100] = odd
    made = ggml.product(number, matrix, x, threads=2)
    assert np.isnan(made[4]).all()
    assert (np.delete(made, 4, 0) == np.delete(alone, 4, 0)).all()


@pytest.mark.parametrize("kind", KINDS)
def test_the_smallest_numbers_are_nothing(ggml: Ggml, kind: str) -> None:
    random = np.random.default_rng(4)
    number = gguf.GGMLQuantizationType[kind]
    matrix = ggml.quantised(number, random.standard_normal((32, 512), np.float32))
    assert (ggml.product(number, matrix, np.full((1, 512), 1e-41, np.float32), threads=1) == 0).all()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("columns", [1, 3])
def test_experts(ggml: Ggml, kind: str, columns: int) -> None:
    """As if each expert's products were asked for alone: experts that nobody asks, and one that all ask, among them."""
    random = np.random.default_rng(columns)
    number = gguf.GGMLQuantizationType[kind]
    experts, rows, inputs, used = 6, 48, 90, 3
    weights = random.standard_normal((experts, rows, 256), np.float32)
    matrices = np.stack([ggml.quantised(number, each) for each in weights])
    x = random.standard_normal((inputs, columns, 256), np.float32)
    chosen = np.array([random.permutation([0, 2, 3, 5])[:used] for _ in range(inputs)], np.int32)
    chosen[:, 1] = 4
    alone = [ggml.product(number, each, x.reshape(-1, 256), 1).reshape(inputs, columns, rows) for each in matrices]
    expected = np.array(
        [[alone[e][i, min(j, columns - 1)] for j, e in enumerate(those)] for i, those in enumerate(chosen)]
    )
    for count in (1, 2, inputs):
        for threads in (1, 2, 3):
            made = ggml.routed(number, matrices, x[:count], np.ascontiguousarray(chosen[:count]), threads)
            assert (made == expected[:count]).all()


# key, value, heads, key heads: grouped heads, one key head, none grouped, latent attention
SHAPES = [(64, 64, 9, 3), (256, 256, 4, 1), (80, 80, 4, 4), (192, 128, 2, 1), (576, 512, 16, 1)]
CELLS = 768
HOLE = slice(64, 352)  # another sequence's cells: whole chunks and tiles, and parts of both


def attended(q: Floats, k: npt.NDArray[Any], v: npt.NDArray[Any], mask: Halves) -> npt.NDArray[np.float64]:
    """By the textbook, in double precision."""
    share = q.shape[1] // k.shape[1]
    keys, values = (np.repeat(each.astype(np.float64), share, 1) for each in (k, v))
    scores = np.einsum("rhd,chd->rhc", q.astype(np.float64), keys) * q.shape[-1] ** -0.5 + mask[:, None].astype(
        np.float64
    )
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    weights /= weights.sum(-1, keepdims=True)
    mixed: npt.NDArray[np.float64] = np.einsum("rhc,chd->rhd", weights, values)
    return mixed


def stored(ggml: Ggml, kind: int, cells: Halves) -> npt.NDArray[Any]:
    """What a tensor of this type holds of them."""
    if kind == F16:
        return cells
    blocks = ggml.quantised(kind, cells.reshape(-1, cells.shape[-1]).astype(np.float32))
    held: npt.NDArray[Any] = gguf.dequantize(blocks, gguf.GGMLQuantizationType(kind)).reshape(cells.shape)
    return held


@pytest.mark.parametrize("kind", [F16, Q8_0, Q4_0])
@pytest.mark.parametrize(("key", "value", "heads", "key_heads"), SHAPES)
def test_attention(ggml: Ggml, key: int, value: int, heads: int, key_heads: int, kind: int) -> None:
    if kind != F16 and key % 32:
        pytest.skip("no whole blocks")
    random = np.random.default_rng(key)
    rows = 70
    q = random.standard_normal((rows, heads, key), np.float32) * np.float32(2)
    k = random.standard_normal((CELLS, key_heads, key), np.float32).astype(np.float16)
    v = random.standard_normal((CELLS, key_heads, value), np.float32).astype(np.float16)
    mask = np.where(np.arange(CELLS) <= CELLS - rows - 100 + np.arange(rows)[:, None], 0, -np.inf).astype(np.float16)
    mask[:, HOLE] = -np.inf
    mask[1, 1:] = -np.inf  # sees itself alone
    expected = attended(q, stored(ggml, kind, k), stored(ggml, kind, v), mask)
    alone = [ggml.attention(q[row : row + 1], k, v, mask[row : row + 1], 1, kind)[0] for row in range(rows)]
    for count in (1, 2, 3, 9, 63, 64, rows):
        for threads in (1, 2):
            made = ggml.attention(q[:count], k, v, mask[:count], threads, kind)
            assert np.allclose(made, expected[:count], rtol=1e-5, atol=1e-5)
            assert (made == np.array(alone[:count])).all()


@pytest.mark.parametrize("before", [1, 37, 256, 300])
def test_attention_does_not_depend_on_where_cells_lie(ggml: Ggml, before: int) -> None:
    """Others' cells may come before and between, as long as a text's own are in order."""
    random = np.random.default_rng(before)
    q = random.standard_normal((3, 6, 64), np.float32) * np.float32(8)
    k, v = (random.standard_normal((512, 2, 64), np.float32).astype(np.float16) for _ in range(2))
    seen = np.where(np.arange(512) < 400, 0, -np.inf).astype(np.float16)
    expected = ggml.attention(q, k, v, np.tile(seen, (3, 1)), 2)
    places = np.sort(random.permutation(np.arange(before, 1024))[:512])
    far = [random.standard_normal((1024, 2, 64), np.float32).astype(np.float16) for _ in range(2)]
    mask = np.full((3, 1024), -np.inf, np.float16)
    far[0][places], far[1][places], mask[:, places] = k, v, seen
    for threads in (1, 2):
        assert (ggml.attention(q, far[0], far[1], mask, threads) == expected).all()


@pytest.mark.parametrize("heads", [2, 6, 10])
def test_rows_of_several_texts_see_tiles_of_their_own(ggml: Ggml, heads: int) -> None:
    """Any of them beside any others: what one does not see costs it nothing, and changes nothing."""
    random = np.random.default_rng(heads)
    rows, cells = 23, 1024
    q = random.standard_normal((rows, heads, 64), np.float32) * np.float32(4)
    k, v = (random.standard_normal((cells, 2, 64), np.float32).astype(np.float16) for _ in range(2))
    tiles = random.random((rows, cells // 8)) < np.linspace(0.01, 0.9, rows)[:, None]
    tiles[5:9] = tiles[5]  # of one text
    mask = np.where(np.repeat(tiles, 8, 1), 0, -np.inf).astype(np.float16)
    mask[:, 0] = 0
    alone = np.array([ggml.attention(q[row : row + 1], k, v, mask[row : row + 1], 1)[0] for row in range(rows)])
    assert np.allclose(alone, attended(q, k, v, mask), rtol=1e-5, atol=1e-5)
    for threads in (1, 2):
        assert (ggml.attention(q, k, v, mask, threads) == alone).all()


def test_a_row_that_sees_nothing_is_nothing(ggml: Ggml) -> None:
    q, mask = np.ones((2, 4, 64), np.float32), np.full((2, 256), -np.inf, np.float16)
    mask[1, 3] = 0
    cells = np.ones((256, 2, 64), np.float16)
    made = ggml.attention(q, cells, cells, mask, 2)
    assert (made[0] == 0).all()
    assert (made[1] == 1).all()


@pytest.mark.parametrize("odd", [np.nan, np.inf])
@pytest.mark.parametrize("of_keys", [True, False])
def test_what_is_no_number_shows_where_it_is_seen_alone(ggml: Ggml, odd: float, of_keys: bool) -> None:
    """In a cell of keys or values, beside others of the same tile; for any number of rows and threads."""
    random = np.random.default_rng(7)
    rows, cells = 40, 768
    q = random.standard_normal((rows, 6, 64), np.float32)
    k, v = (random.standard_normal((cells, 2, 64), np.float32).astype(np.float16) for _ in range(2))
    mask = np.where(np.arange(cells) <= cells - rows + np.arange(rows)[:, None], 0, -np.inf).astype(np.float16)
    mask[:, 70:80] = -np.inf
    expected = ggml.attention(q, k, v, mask, 1)
    (k if of_keys else v)[[75, cells - 10]] = odd  # nobody sees the first; the last rows see the second
    sees = mask[:, cells - 10] == 0
    for count in (1, 3, rows):
        for threads in (1, 2, 3):
            made = ggml.attention(q[-count:], k, v, mask[-count:], threads)
            hit = sees[-count:]
            assert (made[~hit] == expected[-count:][~hit]).all()
            assert not np.isfinite(made[hit]).any()


def test_a_query_that_is_no_number(ggml: Ggml) -> None:
    random = np.random.default_rng(8)
    q = random.standard_normal((3, 4, 64), np.float32)
    k, v = (random.standard_normal((512, 2, 64), np.float32).astype(np.float16) for _ in range(2))
    mask = np.zeros((3, 512), np.float16)
    expected = ggml.attention(q, k, v, mask, 1)
    q[1, :, 5] = np.nan
    for threads in (1, 2):
        made = ggml.attention(q, k, v, mask, threads)
        assert np.isnan(made[1]).all()
        assert (made[[0, 2]] == expected[[0, 2]]).all()


def test_scores_far_below_zero_weigh_as_others_do(ggml: Ggml) -> None:
    random = np.random.default_rng(9)
    q, k = np.full((2, 2, 64), 300, np.float32), np.full((256, 2, 64), -300, np.float16)
    v = random.standard_normal((256, 2, 64), np.float32).astype(np.float16)
    made = ggml.attention(q, k, v, np.zeros((2, 256), np.float16), 2)
    assert np.allclose(made, np.tile(v.astype(np.float32).mean(0), (2, 1, 1)), atol=1e-5)


@pytest.mark.parametrize("kind", [F16, Q8_0, Q4_0])
def test_weights_too_small_for_a_float_do_not_tell_who_computed(ggml: Ggml, kind: int) -> None:
    """Nor where cells lie. They are all there is where others hold zero, as they often do when stored in few bits."""
    random = np.random.default_rng(11)
    q, k = np.zeros((40, 4, 64), np.float32), np.zeros((1024, 2, 64), np.float16)
    q[..., 0], k[..., 0] = np.linspace(8, 16, 40)[:, None], np.linspace(-60, 60, 1024)[:, None]  # scores, in nats
    v = np.where(k[..., :1] < -20, random.standard_normal((1024, 2, 64)), 0).astype(np.float16)
    mask = np.zeros((40, 1024), np.float16)
    expected = np.array([ggml.attention(q[i : i + 1], k, v, mask[i : i + 1], 1, kind)[0] for i in range(40)])
    for threads in (1, 2, 3):
        for rows in (1, 5, 40):
            assert (ggml.attention(q[:rows], k, v, mask[:rows], threads, kind) == expected[:rows]).all()
    k, v = (np.insert(each, 300, np.ones((64, 2, 64)), 0) for each in (k[:960], v[:960]))
    mask = np.zeros((40, 1024), np.float16)
    mask[:, 300:364] = -np.inf
    moved = ggml.attention(q, k, v, mask, 1, kind)
    k, v, mask = (np.delete(each, np.s_[300:364], axis) for each, axis in ((k, 0), (v, 0), (mask, 1)))
    assert (ggml.attention(q, k, v, mask, 1, kind) == moved).all()


@pytest.mark.parametrize("cells", [1, 5, 17, 250, 300, 515])
def test_cells_that_fill_no_tile(ggml: Ggml, cells: int) -> None:
    """As encoders have them, which keep no memory of a text; beside others' cells, or not."""
    random = np.random.default_rng(cells)
    q = random.standard_normal((cells, 4, 64), np.float32)
    k, v = (random.standard_normal((cells, 2, 64), np.float32).astype(np.float16) for _ in range(2))
    mask = np.zeros((cells, cells), np.float16)
    made = ggml.attention(q, k, v, mask, 2)
    assert np.allclose(made, attended(q, k, v, mask), rtol=1e-5, atol=1e-5)
    k, v = (np.concatenate([each, np.full((9, 2, 64), np.inf, np.float16)]) for each in (k, v))
    mask = np.pad(mask, ((0, 0), (0, 9)), constant_values=-np.inf)
    for threads in (1, 3):
        assert (ggml.attention(q, k, v, mask, threads) == made).all()
