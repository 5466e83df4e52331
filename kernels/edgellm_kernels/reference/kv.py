"""Writing and reading paged keys and values."""

from __future__ import annotations

from typing import Final

import torch
from torch import Tensor

from edgellm_kernels.kv_kinds import SCALED
from edgellm_kernels.pages import Pages

_LARGEST: Final = {"int8": 127.0, "fp8": 448.0}  # of a code; e4m3 without infinities ends at 448


def kv_write(pages: Pages, k: Tensor, v: Tensor | None, slots: Tensor) -> None:
    """Put rows into their slots: k [rows, kv_heads, k_size], v [rows, kv_heads, v_size] or None where keys hold them.

    `slots` int64 [rows]: block * block_size + offset; each at most once. What is not finite stays so.
    """
    if (v is None) != pages.shares_v:
        raise ValueError("values are " + ("part of the keys here" if pages.shares_v else "missing"))
    _put(pages.kind, pages.k, pages.k_scale, k, slots)
    if v is not None and pages.v is not None:
        _put(pages.kind, pages.v, pages.v_scale, v, slots)


def kv_read(pages: Pages, slots: Tensor) -> tuple[Tensor, Tensor]:
    """Keys [n, kv_heads, k_size] and values [n, kv_heads, v_size] at int64 slots [n], in float32."""
    k = _get(pages.k, pages.k_scale, slots)
    return k, k[..., : pages.v_size] if pages.v is None else _get(pages.v, pages.v_scale, slots)


def quantise(x: Tensor, kind: str) -> tuple[Tensor, Tensor]:
    """Codes in the range of "int8" or "fp8", and a scale per token and head: x [..., size] -> [..., size], [...]."""
    scale = x.abs().amax(-1) / _LARGEST[kind]
    codes = x / torch.where(scale == 0, 1.0, scale)[..., None]
    return (codes.round_().clamp_(-127.0, 127.0) if kind == "int8" else codes.clamp_(-448.0, 448.0)), scale


def _put(kind: str, target: Tensor, scales: Tensor | None, x: Tensor, slots: Tensor) -> None:
    if x.shape[1:] != target.shape[2:]:
        raise ValueError(f"rows of {tuple(x.shape[1:])} do not fit pages of {tuple(target.shape[2:])}")
    if kind in SCALED and scales is not None:
        x, scale = quantise(x, kind)
        scales.view(-1, scales.shape[2]).index_copy_(0, slots, scale)
    stored = x.to(target.dtype)
    if kind == "fp8":
        stored, target = stored.view(torch.uint8), target.view(torch.uint8)
    target.view(-1, *target.shape[2:]).index_copy_(0, slots, stored)


def _get(source: Tensor, scales: Tensor | None, slots: Tensor) -> Tensor:
    flat = source.view(-1, *source.shape[2:])
    if source.dtype == torch.float8_e4m3fn:
        found = flat.view(torch.uint8).index_select(0, slots).view(source.dtype).float()
    else:
        found = flat.index_select(0, slots).float()
    if scales is not None:
        found *= scales.view(-1, scales.shape[2]).index_select(0, slots)[..., None]
    return found
