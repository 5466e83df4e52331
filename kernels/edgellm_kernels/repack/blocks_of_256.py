"""Planes of the types with blocks of 256: Q2_K to Q6_K and IQ4_XS.

Each function takes blocks as bytes [n, k / 256, bytes of a block] and returns planes of n rows (see the package).
Source: `ggml-common.h`, `ggml-quants.c`.
"""

from __future__ import annotations

import torch
from torch import Tensor

from edgellm_kernels.repack.blocks_of_32 import Planes, halves, packed


def _spread(field: Tensor, run: int, bits: int) -> Tensor:
    """Codes stored in runs of bytes: each run holds first the lowest bits of all its bytes, then the next ones, ….

    Bytes [n, blocks, m] as uint8 codes [n, blocks, m * 8 / bits].
    """
    places = torch.arange(0, 8, bits, dtype=torch.uint8, device=field.device)
    runs = field.unflatten(-1, (-1, 1, run))
    return ((runs >> places[:, None]) & ((1 << bits) - 1)).flatten(-3)


def _groups(values: Tensor) -> Tensor:
    """Values per group [n, blocks, groups] as [n, groups of the row]."""
    return values.flatten(1).contiguous()


def _six_bits(field: Tensor) -> tuple[Tensor, Tensor]:
    """The eight scales and eight minima in the twelve bytes of Q4_K and Q5_K, uint8 [n, blocks, 8] each."""
    first, second, rest = field[..., :4], field[..., 4:8], field[..., 8:]
    scales = torch.cat((first & 63, (rest & 15) | ((first >> 6) << 4)), dim=-1)
    mins = torch.cat((second & 63, (rest >> 4) | ((second >> 6) << 4)), dim=-1)
    return scales, mins


def q2_k(raw: Tensor) -> Planes:
    return {
        "low": packed(_spread(raw[..., 16:80], 32, 2), 2),
        "pairs": _groups(raw[..., :16]),
        "d": halves(raw[..., 80:82]),
        "dmin": halves(raw[..., 82:84]),
    }


def q3_k(raw: Tensor) -> Planes:
    field = raw[..., 96:108]
    scales = _spread(field[..., :8], 8, 4) | (_spread(field[..., 8:], 4, 2) << 4)
    return {
        "low": packed(_spread(raw[..., 32:96], 32, 2), 2),
        "high": packed(_spread(raw[..., :32], 32, 1), 1),
        "scales": _groups(scales.view(torch.int8) - 32),
        "d": halves(raw[..., 108:110]),
    }


def q4_k(raw: Tensor) -> Planes:
    scales, mins = _six_bits(raw[..., 4:16])
    return {
        "low": packed(_spread(raw[..., 16:144], 32, 4), 4),
        "scales": _groups(scales),
        "mins": _groups(mins),
        "d": halves(raw[..., :2]),
        "dmin": halves(raw[..., 2:4]),
    }


def q5_k(raw: Tensor) -> Planes:
    scales, mins = _six_bits(raw[..., 4:16])
    return {
        "low": packed(_spread(raw[..., 48:176], 32, 4), 4),
        "high": packed(_spread(raw[..., 16:48], 32, 1), 1),
        "scales": _groups(scales),
        "mins": _groups(mins),
        "d": halves(raw[..., :2]),
        "dmin": halves(raw[..., 2:4]),
    }


def q6_k(raw: Tensor) -> Planes:
    return {
        "low": packed(_spread(raw[..., :128], 64, 4), 4),
        "high": packed(_spread(raw[..., 128:192], 32, 2), 2),
        "scales": _groups(raw[..., 192:208].contiguous().view(torch.int8)),
        "d": halves(raw[..., 208:210]),
    }


def iq4_xs(raw: Tensor) -> Planes:
    low = raw[..., 4:8]
    low = torch.stack((low & 15, low >> 4), dim=-1).flatten(-2)
    places = torch.arange(0, 8, 2, dtype=torch.uint8, device=raw.device)
    high = ((raw[..., 2:4, None] >> places) & 3).flatten(-2)
    return {
        "low": packed(_spread(raw[..., 8:136], 16, 4), 4),
        "scales": _groups((low | (high << 4)).view(torch.int8) - 32),
        "d": halves(raw[..., :2]),
    }
