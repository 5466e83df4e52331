"""Cosine and sine in float64, with the same bits for an element in any company, as in exact.py.

Source: fdlibm (k_sin.c, k_cos.c: polynomials up to pi / 4); Cody and Waite, Software Manual for the Elementary
Functions: range reduction.
"""

from __future__ import annotations

import math
from typing import Final

import torch
from torch import Tensor

from edgellm_kernels.reference.exact import polynomial

# pi / 2 in three parts of few bits: products with a number of quarters below 2 ** 26 are exact.
_QUARTER: Final = (1.5707963109016418, 1.5893254712295857e-08, 6.123233995736766e-17)
_SINE: Final = (
    1.58969099521155010221e-10,
    -2.50507602534068634195e-08,
    2.75573137070700676789e-06,
    -1.98412698298579493134e-04,
    8.33333333332248946124e-03,
    -1.66666666666666324348e-01,
)
_COSINE: Final = (
    -1.13596475577881948265e-11,
    2.08757232129817482790e-09,
    -2.75573143513906633035e-07,
    2.48015872894767294178e-05,
    -1.38888888888741095749e-03,
    4.16666666666666019037e-02,
)


def circle(angle: Tensor) -> tuple[Tensor, Tensor]:
    """Cosine and sine of angles in radians below 1e8: float64 of any shape. Within 4e-16, and what the angle is off."""
    quarters = (angle * (2 / math.pi)).round_()
    rest = angle.clone()
    for part in _QUARTER:
        rest -= quarters * part
    square = rest * rest
    sine = polynomial(square, _SINE) * square * rest + rest
    cosine = polynomial(square, _COSINE) * square * square + (1.0 - square * 0.5)
    number = quarters.long()
    odd = (number & 1).bool()
    cosine, sine = torch.where(odd, sine, cosine), torch.where(odd, cosine, sine)
    return torch.where(((number + 1) & 2).bool(), -cosine, cosine), torch.where((number & 2).bool(), -sine, sine)
