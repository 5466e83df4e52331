"""What each block type's planes mean, and the function that makes them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

from torch import Tensor

from edgellm_kernels.repack import blocks_of_32 as by_32
from edgellm_kernels.repack import blocks_of_256 as by_256

IQ4_VALUES: Final = (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113)
MXFP4_VALUES: Final = (0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12)  # twice those of e2m1


class Format(NamedTuple):
    """How planes are read.

    low, high   bits of a code in each of the two planes
    group       elements that share a scale
    zero        is taken from each code
    values      what a code stands for, where it is no number itself
    """

    repack: Callable[[Tensor], by_32.Planes]
    low: int
    high: int
    group: int
    zero: int = 0
    values: tuple[int, ...] = ()


FORMATS: Final[dict[str, Format]] = {
    "Q4_0": Format(by_32.q4_0, 4, 0, 32, zero=8),
    "Q4_1": Format(by_32.q4_1, 4, 0, 32),
    "Q5_0": Format(by_32.q5_0, 4, 1, 32, zero=16),
    "Q5_1": Format(by_32.q5_1, 4, 1, 32),
    "Q8_0": Format(by_32.q8_0, 8, 0, 32),
    "IQ4_NL": Format(by_32.q4_0, 4, 0, 32, values=IQ4_VALUES),
    "MXFP4": Format(by_32.mxfp4, 4, 0, 32, values=MXFP4_VALUES),
    "Q2_K": Format(by_256.q2_k, 2, 0, 16),
    "Q3_K": Format(by_256.q3_k, 2, 1, 16, zero=4),
    "Q4_K": Format(by_256.q4_k, 4, 0, 32),
    "Q5_K": Format(by_256.q5_k, 4, 1, 32),
    "Q6_K": Format(by_256.q6_k, 4, 2, 16, zero=32),
    "IQ4_XS": Format(by_256.iq4_xs, 4, 0, 32, values=IQ4_VALUES),
}
