"""From planes back to numbers: float32, equal to ggml's own results to the last bit."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import torch
from torch import Tensor

from edgellm_kernels.repack.bits import parts
from edgellm_kernels.repack.formats import FORMATS, Format

DENSE: Final = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}


def values(kind: str, planes: Mapping[str, Tensor], out: Tensor | None = None) -> Tensor:
    """All numbers of a tensor of GGUF type `kind`: float32 [..., k], in `out` if that is given.

    Float32 planes are returned as they are.
    """
    if kind in DENSE:
        dense = planes["dense"]
        return dense.float() if out is None or kind == "F32" else out.copy_(dense)
    form = FORMATS[kind]
    low = planes["low"]
    if out is None:
        out = torch.empty((*low.shape[:-1], low.shape[-1] * 8 // form.low), device=low.device)
    _numbers(form, planes, out)
    grouped = out.unflatten(-1, (-1, form.group))
    grouped.mul_(_scales(planes)[..., None])
    if (offset := _offsets(planes)) is not None:
        grouped.add_(offset[..., None])
    return out


def _numbers(form: Format, planes: Mapping[str, Tensor], out: Tensor) -> None:
    """What the codes stand for, before scaling."""
    low = planes["low"]
    if form.low == 8:
        out.copy_(low)
        return
    places = parts(low, form.low)
    if form.high:
        places = _joined(places, parts(planes["high"], form.high), form.low)
    width = out.shape[-1] // len(places)
    for place, codes in enumerate(places):
        out.narrow(-1, place * width, width).copy_(_meaning(form, codes))


def _joined(low: list[Tensor], high: list[Tensor], shift: int) -> list[Tensor]:
    """Codes whose upper bits are in other, narrower parts than their lower ones."""
    finer = len(high) // len(low)
    cut = [piece for part in low for piece in part.chunk(finer, dim=-1)]
    return [piece | (upper << shift) for piece, upper in zip(cut, high, strict=True)]


def _meaning(form: Format, codes: Tensor) -> Tensor:
    if form.values:
        table = torch.tensor(form.values, dtype=torch.int8, device=codes.device)
        return table.index_select(0, codes.reshape(-1).int()).view(codes.shape)
    return codes.view(torch.int8).sub_(form.zero) if form.zero else codes


def _scales(planes: Mapping[str, Tensor]) -> Tensor:
    """What codes are multiplied by: float32 [..., k / group]."""
    if "exponents" in planes:
        return _half_of_e8m0(planes["exponents"])
    d = planes["d"].float()
    if "pairs" in planes:
        return _by_group(d, planes["pairs"] & 15)
    return _by_group(d, planes["scales"]) if "scales" in planes else d


def _offsets(planes: Mapping[str, Tensor]) -> Tensor | None:
    """What is added then: float32 [..., k / group], or None."""
    if "m" in planes:
        return planes["m"].float()
    if "dmin" not in planes:
        return None
    mins = planes["pairs"] >> 4 if "pairs" in planes else planes["mins"]
    return _by_group(planes["dmin"].float(), mins).neg_()


def _by_group(d: Tensor, factors: Tensor) -> Tensor:
    """Scales of blocks [..., blocks] times factors of the groups in them [..., groups]."""
    per_block = factors.shape[-1] // d.shape[-1]
    return (d[..., None] * factors.unflatten(-1, (-1, per_block)).float()).flatten(-2)


def _half_of_e8m0(exponents: Tensor) -> Tensor:
    """2 ** (e - 128) of uint8 e: half of what the format says, because the values of MXFP4 are doubled here."""
    e = exponents.int()
    bits = torch.where(e < 2, 0x00200000 << e.clamp(max=1), (e - 1) << 23)
    return bits.view(torch.float32)
