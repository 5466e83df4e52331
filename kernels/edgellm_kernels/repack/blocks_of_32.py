"""Planes of the types with blocks of 32: Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, IQ4_NL, MXFP4.

Each function takes blocks as bytes [n, k / 32, bytes of a block] and returns planes of n rows (see the package).
Source: `ggml-common.h`, `ggml-quants.c`.
"""

from __future__ import annotations

import torch
from torch import Tensor

from edgellm_kernels.repack.bits import pack

Planes = dict[str, Tensor]


def halves(field: Tensor) -> Tensor:
    """A float16 field, bytes [n, blocks, 2], as [n, blocks]."""
    return field.contiguous().view(torch.float16).squeeze(-1)


def nibbles(qs: Tensor) -> Tensor:
    """Codes of 16 bytes per block: byte j holds element j low and element j + 16 high. uint8 [n, blocks, 32]."""
    return torch.cat((qs & 15, qs >> 4), dim=-1)


def packed(codes: Tensor, bits: int) -> Tensor:
    """Codes [n, blocks, elements] as bytes [n, …]."""
    return pack(codes.flatten(1), bits)


def _fifth_bits(qh: Tensor) -> Tensor:
    """Bit i of the four bytes belongs to element i. uint8 [n, blocks, 32]."""
    places = torch.arange(8, dtype=torch.uint8, device=qh.device)
    return ((qh[..., None] >> places) & 1).flatten(-2)


def q4_0(raw: Tensor) -> Planes:
    return {"low": packed(nibbles(raw[..., 2:]), 4), "d": halves(raw[..., :2])}


def q4_1(raw: Tensor) -> Planes:
    return {"low": packed(nibbles(raw[..., 4:]), 4), "d": halves(raw[..., :2]), "m": halves(raw[..., 2:4])}


def q5_0(raw: Tensor) -> Planes:
    return {
        "low": packed(nibbles(raw[..., 6:]), 4),
        "high": packed(_fifth_bits(raw[..., 2:6]), 1),
        "d": halves(raw[..., :2]),
    }


def q5_1(raw: Tensor) -> Planes:
    return {
        "low": packed(nibbles(raw[..., 8:]), 4),
        "high": packed(_fifth_bits(raw[..., 4:8]), 1),
        "d": halves(raw[..., :2]),
        "m": halves(raw[..., 2:4]),
    }


def q8_0(raw: Tensor) -> Planes:
    return {"low": raw[..., 2:].contiguous().view(torch.int8).flatten(1), "d": halves(raw[..., :2])}


def mxfp4(raw: Tensor) -> Planes:
    return {"low": packed(nibbles(raw[..., 1:]), 4), "exponents": raw[..., 0].contiguous()}
