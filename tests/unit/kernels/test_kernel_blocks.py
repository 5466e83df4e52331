"""Block types: planes give what gguf's own reader gives, to the last bit, and sizes that do not fit are refused."""

from __future__ import annotations

import gguf
import numpy as np
import numpy.typing as npt
import pytest
import torch
from block_data import HALVES, Bytes, random_blocks
from edgellm_kernels import ops
from edgellm_kernels.blocks import BLOCKS, block_bytes
from edgellm_kernels.planes import Weight
from edgellm_kernels.repack.bits import pack, parts
from hypothesis import given, settings
from hypothesis import strategies as st

from edgellm.formats.gguf_types import TENSOR_TYPES

# 0, -0, the smallest and the largest denormal, the smallest normal, 1, -1, the largest.
EDGES = np.array([0x0000, 0x8000, 0x0001, 0x83FF, 0x0400, 0x3C00, 0xBC00, 0x7BFF], dtype=np.uint16)
QUANTISED = [kind for kind, size in BLOCKS.items() if not size.dense]


def expected(raw: Bytes, kind: str) -> npt.NDArray[np.float32]:
    found: npt.NDArray[np.float32] = gguf.quants.dequantize(raw, gguf.GGMLQuantizationType[kind])
    return found


def weight(raw: Bytes, kind: str, shape: tuple[int, ...]) -> Weight:
    return Weight.from_gguf(torch.from_numpy(raw.reshape(-1)), kind, shape)


def assert_same_bits(found: torch.Tensor, wanted: npt.NDArray[np.float32]) -> None:
    assert found.dtype == torch.float32
    np.testing.assert_array_equal(found.numpy().view(np.uint32), wanted.view(np.uint32).reshape(found.shape))


@pytest.mark.parametrize("kind", BLOCKS)
@pytest.mark.parametrize(("rows", "k"), [(1, 256), (5, 768), (33, 512)])
def test_random_blocks_have_the_bits_of_gguf(kind: str, rows: int, k: int) -> None:
    raw = random_blocks(kind, rows, k, seed=rows)
    assert_same_bits(weight(raw, kind, (rows, k)).dense(), expected(raw, kind))


@pytest.mark.parametrize("kind", HALVES)
def test_zero_denormal_and_largest_scales(kind: str) -> None:
    raw = random_blocks(kind, len(EDGES), 256)
    blocks = raw.reshape(len(EDGES), -1, BLOCKS[kind].nbytes)
    for shift, at in enumerate(HALVES[kind]):
        edges = np.roll(EDGES, 3 * shift).view(np.uint8).reshape(-1, 1, 2)
        blocks[:, :, at : at + 2] = edges
    with np.errstate(over="ignore"):
        wanted = expected(raw, kind)
    assert_same_bits(weight(raw, kind, (len(EDGES), 256)).dense(), wanted)


def test_every_exponent_of_mxfp4() -> None:
    raw = random_blocks("MXFP4", 256, 32)
    raw[:, 0] = np.arange(256)
    with np.errstate(over="ignore"):
        wanted = expected(raw, "MXFP4")
    assert_same_bits(weight(raw, "MXFP4", (256, 32)).dense(), wanted)


def test_sizes_are_those_of_the_format() -> None:
    theirs = {size.name: (size.elements, size.nbytes) for size in TENSOR_TYPES.values()}
    assert {name: tuple(size) for name, size in BLOCKS.items()} == {name: theirs[name] for name in BLOCKS}
    assert block_bytes("Q4_K", (3, 5, 512)) == 3 * 5 * 2 * 144


@pytest.mark.parametrize("kind", BLOCKS)
def test_planes_take_hardly_more_than_the_file(kind: str) -> None:
    raw = random_blocks(kind, 4, 512)
    size = weight(raw, kind, (4, 512)).nbytes
    assert raw.nbytes <= size <= raw.nbytes * 1.04


@pytest.mark.parametrize("kind", QUANTISED)
def test_parts_of_a_weight_are_parts_of_its_values(kind: str) -> None:
    raw = random_blocks(kind, 3 * 8, 512)
    whole = weight(raw, kind, (3, 8, 512))
    values = whole.dense()
    assert whole.shape == values.shape == (3, 8, 512)
    assert torch.equal(whole[1].dense(), values[1])
    assert torch.equal(whole[1][2:5].dense(), values[1, 2:5])
    assert whole[0:2].shape == (2, 8, 512)
    chosen = torch.tensor([7, 0, 7])
    assert torch.equal(ops.embed(chosen, whole[2]), values[2, chosen])
    assert whole[1].planes["low"].untyped_storage().data_ptr() == whole.planes["low"].untyped_storage().data_ptr()


def test_large_weights_are_repacked_in_steps() -> None:
    raw = random_blocks("Q8_0", 6000, 1024)  # 6.5 MB: more than one step
    assert_same_bits(weight(raw, "Q8_0", (6000, 1024)).dense(), expected(raw, "Q8_0"))


def test_dense_weights_stay_where_they_are() -> None:
    raw = random_blocks("F16", 4, 8)
    data = torch.from_numpy(raw.reshape(-1))
    found = Weight.from_gguf(data, "F16", (4, 8))
    assert found.planes["dense"].data_ptr() == data.data_ptr()
    shifted = torch.cat((torch.zeros(1, dtype=torch.uint8), data))[1:]  # not at a multiple of two
    assert torch.equal(Weight.from_gguf(shifted, "F16", (4, 8)).dense(), found.dense())
    assert torch.equal(Weight.from_gguf(data, "F16", (32,)).dense(), found.dense().view(-1))


@pytest.mark.parametrize(
    ("kind", "shape", "nbytes", "words"),
    [
        ("Q4_0", (2, 64), 71, "takes 72 bytes"),
        ("Q4_0", (2, 64), 73, "takes 72 bytes"),
        ("Q4_0", (2, 48), 54, "whole blocks of Q4_0, which hold 32"),
        ("Q4_K", (2, 128), 144, "whole blocks of Q4_K, which hold 256"),
        ("F32", (3, 3), 35, "takes 36 bytes"),
        ("IQ2_XXS", (2, 256), 132, "IQ2_XXS is not known"),
        ("F32", (), 4, "cannot have shape"),
        ("F32", (0, 4), 0, "cannot have shape"),
    ],
)
def test_what_does_not_fit_is_refused(kind: str, shape: tuple[int, ...], nbytes: int, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        Weight.from_gguf(torch.zeros(nbytes, dtype=torch.uint8), kind, shape)


def test_only_bytes_are_taken() -> None:
    with pytest.raises(ValueError, match="uint8"):
        Weight.from_gguf(torch.zeros(72, dtype=torch.int8), "Q4_0", (2, 64))
    with pytest.raises(ValueError, match="float64"):
        Weight.from_tensor(torch.zeros((2, 2), dtype=torch.float64))
    with pytest.raises(IndexError):
        Weight.from_tensor(torch.zeros((2, 2)))[0]


@settings(max_examples=40)
@given(st.sampled_from([1, 2, 4]), st.integers(1, 9), st.integers(1, 9), st.integers(0, 2**32 - 1))
def test_packing_can_be_undone(bits: int, rows: int, bytes_of_row: int, seed: int) -> None:
    codes = torch.from_numpy(
        np.random.default_rng(seed).integers(0, 1 << bits, (rows, bytes_of_row * 8 // bits), dtype=np.uint8)
    )
    packed = pack(codes, bits)
    assert packed.shape == (rows, bytes_of_row)
    assert torch.equal(torch.cat(parts(packed, bits), dim=-1), codes)
