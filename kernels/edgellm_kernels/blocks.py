"""GGUF block types: how many elements a block holds and in how many bytes. Needs no torch.

Source: `ggml-common.h` and the GGUF specification. All fields are little-endian.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Final, NamedTuple


class Block(NamedTuple):
    """A row of a matrix is cut into blocks of `elements`, stored in `nbytes` each."""

    elements: int
    nbytes: int

    @property
    def dense(self) -> bool:
        """Whether elements are stored as they are."""
        return self.elements == 1


BLOCKS: Final[dict[str, Block]] = {
    "F32": Block(1, 4),
    "F16": Block(1, 2),
    "BF16": Block(1, 2),
    "Q4_0": Block(32, 18),
    "Q4_1": Block(32, 20),
    "Q5_0": Block(32, 22),
    "Q5_1": Block(32, 24),
    "Q8_0": Block(32, 34),
    "Q2_K": Block(256, 84),
    "Q3_K": Block(256, 110),
    "Q4_K": Block(256, 144),
    "Q5_K": Block(256, 176),
    "Q6_K": Block(256, 210),
    "IQ4_NL": Block(32, 18),
    "IQ4_XS": Block(256, 136),
    "MXFP4": Block(32, 17),
}


def block(kind: str) -> Block:
    """The block of a GGUF type. ValueError for one that is not known here."""
    found = BLOCKS.get(kind)
    if found is None:
        raise ValueError(f"block type {kind} is not known; known are {', '.join(BLOCKS)}")
    return found


def block_bytes(kind: str, shape: Sequence[int]) -> int:
    """Bytes of a tensor in a file. `shape` outermost first; ValueError where its rows are not whole blocks."""
    found = block(kind)
    if not shape or min(shape) < 1:
        raise ValueError(f"a {kind} tensor cannot have shape {tuple(shape)}")
    if shape[-1] % found.elements:
        raise ValueError(f"rows of {shape[-1]} are not whole blocks of {kind}, which hold {found.elements} elements")
    return prod(shape) // found.elements * found.nbytes
