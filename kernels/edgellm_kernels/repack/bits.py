"""Codes of 1, 2 or 4 bits in bytes.

A row of k codes of b bits takes m = k * b / 8 bytes; byte j holds the codes j, j + m, j + 2m, …, the first in its
lowest bits. So unpacking gives whole runs of the row: one shift and one mask for each.
"""

from __future__ import annotations

from torch import Tensor


def pack(codes: Tensor, bits: int) -> Tensor:
    """uint8 codes [..., k], each below 2 ** bits, as bytes [..., k * bits / 8]."""
    runs = codes.chunk(8 // bits, dim=-1)
    packed = runs[0].clone()
    for place, run in enumerate(runs[1:], start=1):
        packed |= run << (place * bits)
    return packed


def parts(packed: Tensor, bits: int) -> list[Tensor]:
    """The opposite of `pack`: bytes [..., m] as the runs of the row, 8 / bits tensors uint8 [..., m]."""
    mask = (1 << bits) - 1
    shifts = range(0, 8, bits)
    found = [packed & mask, *((packed >> shift) & mask for shift in shifts[1:-1])]
    if len(shifts) > 1:
        found.append(packed >> shifts[-1])
    return found
