"""Random blocks of every type that the torch engine reads: bits, not the work of a quantiser, so that every code, scale
and high bit occurs.
"""

from __future__ import annotations

from typing import Any

import gguf
import numpy as np
import numpy.typing as npt
from gguf.quants import dequantize

TYPES = (
    *("F32", "F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0"),
    *("Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "IQ4_NL", "IQ4_XS", "MXFP4"),
)
Floats = npt.NDArray[np.float32]
Raw = npt.NDArray[np.uint8]


def block_elements(kind: str) -> int:
    return int(gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[kind]][0])


def block_bytes(kind: str) -> int:
    return int(gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[kind]][1])


# Where a block keeps its scale, and its minimum with the factor that brings the mean to nought.
_SCALES: dict[str, tuple[int, int | None, float]] = {
    "Q4_0": (0, None, 0.0),
    "Q4_1": (0, 2, -7.5),
    "Q5_0": (0, None, 0.0),
    "Q5_1": (0, 2, -15.5),
    "Q8_0": (0, None, 0.0),
    "Q2_K": (80, 82, 1.5),
    "Q3_K": (108, None, 0.0),
    "Q4_K": (0, 2, 7.5),
    "Q5_K": (0, 2, 15.5),
    "Q6_K": (208, None, 0.0),
    "IQ4_NL": (0, None, 0.0),
    "IQ4_XS": (0, None, 0.0),
}


def random_blocks(numbers: np.random.Generator, kind: str, shape: tuple[int, ...], spread: float) -> tuple[Any, Floats]:
    """Random rows of a type, as stored and as numbers with about this standard deviation."""
    form = gguf.GGMLQuantizationType[kind]
    if kind in ("F32", "F16", "BF16"):
        values = (numbers.standard_normal(shape) * spread).astype(np.float32)
        if kind == "BF16":
            bits = (values.view(np.uint32) + 0x8000) >> 16
            return bits.astype(np.uint16).view(np.uint8), (bits << 16).astype(np.uint32).view(np.float32)
        stored = values.astype(np.float16 if kind == "F16" else np.float32)
        return stored, stored.astype(np.float32)
    elements, size = gguf.GGML_QUANT_SIZES[form]
    count = int(np.prod(shape)) // elements
    raw = numbers.integers(0, 256, (count, size), np.uint8)
    signs = numbers.uniform(0.5, 1.5, count) * numbers.choice([-1.0, 1.0], count)
    if kind == "MXFP4":
        raw[:, 0] = 127 + round(np.log2(2 * spread / 5.8)) + numbers.integers(-1, 2, count)
    else:
        _scale(raw, kind, signs)
        _scale(raw, kind, signs * spread / float(dequantize(raw, form).std()))
    raw = raw.reshape(*shape[:-1], shape[-1] // elements * size)
    return raw, dequantize(raw, form).astype(np.float32)


def _scale(raw: Raw, kind: str, scales: npt.NDArray[np.float64]) -> None:
    """Write every block's scale; the smallest are below the normal range of F16."""
    at, low, factor = _SCALES[kind]
    halves = scales.astype(np.float16)
    raw[:, at : at + 2] = halves.view(np.uint8).reshape(-1, 2)
    if low is not None:
        raw[:, low : low + 2] = (halves.astype(np.float64) * factor).astype(np.float16).view(np.uint8).reshape(-1, 2)
