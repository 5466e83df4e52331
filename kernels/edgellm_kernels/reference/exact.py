"""Sums, exponentials and what is made of them, with the same bits for an element or a row in any company.

Torch computes the end of a tensor with other instructions than the rest, and sums in an order that depends on its
shape. Here everything is made of operations that IEEE 754 defines to the last bit, one at a time.

Sources: Cephes (`expf`: range reduction and polynomial); Higham, Accuracy and Stability of Numerical Algorithms, 4.2
(pairwise sums).
"""

from __future__ import annotations

from typing import Final

import torch
from torch import Tensor

_LOG2_E: Final = 1.44269504088896341
_LN2_HIGH: Final = 0.693359375  # few bits: a product with a small integer is exact
_LN2_LOW: Final = -2.12194440e-4
_EXP: Final = (1.9875691500e-4, 1.3981999507e-3, 8.3334519073e-3, 4.1665795894e-2, 1.6666665459e-1, 5.0000001201e-1)
_SMALLEST: Final = -87.0  # from here down, 0
_NOTHING: Final = 1.64582e-38  # between e to that and e to the next float32 above; a normal number
_LARGEST: Final = 88.8  # here the power of two is infinite already: it is so from 88.38 on
_SMALL: Final = 0.25  # below, tanh is a series
_TANH: Final = tuple(a / b for a, b in ((-1382, 155925), (62, 2835), (-17, 315), (2, 15), (-1, 3)))


def exp(x: Tensor) -> Tensor:
    """e ** x within 2e-7 relative; 0 up to -87, infinity from 88.38 on, NaN for NaN. float32 of any shape."""
    bounded = x.clamp(_SMALLEST, _LARGEST)
    power = (bounded * _LOG2_E).round_()
    bounded -= power * _LN2_HIGH
    bounded -= power * _LN2_LOW
    result = polynomial(bounded, _EXP)
    result *= bounded
    result *= bounded
    result += bounded
    result += 1.0
    result *= power.int().add_(127).bitwise_left_shift_(23).view(torch.float32)
    return torch.threshold_(result, _NOTHING, 0.0)


def sigmoid(x: Tensor) -> Tensor:
    """1 / (1 + e ** -x)."""
    return 1.0 / exp(-x).add_(1.0)


def tanh(x: Tensor) -> Tensor:
    """Within 4e-7 relative."""
    decay = exp(x.abs().mul_(-2.0))
    large = torch.copysign((1.0 - decay) / (1.0 + decay), x)
    square = x * x
    small = polynomial(square, _TANH) * square * x + x
    return torch.where(x.abs() < _SMALL, small, large)


def row_sum(x: Tensor) -> Tensor:
    """The sum over the last axis: halves are added to each other until one is left. float32 [..., n] -> [...]."""
    n = x.shape[-1]
    width = 1 << max(0, n - 1).bit_length()
    if width == 1:
        return x[..., 0].clone() if n else x.new_zeros(x.shape[:-1])
    half = width // 2
    total = x[..., :half].clone()
    total[..., : n - half] += x[..., half:]
    while half > 1:
        half //= 2
        total = total[..., :half] + total[..., half:]
    return total[..., 0]


def softmax(x: Tensor) -> Tensor:
    """Over the last axis. A row that is -inf throughout gives NaN, as torch's does."""
    raised = exp(x - x.amax(-1, keepdim=True))
    return raised.div_(row_sum(raised)[..., None])


def polynomial(x: Tensor, coefficients: tuple[float, ...]) -> Tensor:
    """By Horner's rule, the highest power first."""
    result = x * coefficients[0]
    result += coefficients[1]
    for coefficient in coefficients[2:]:
        result *= x
        result += coefficient
    return result
