"""Weights as views into mapped files, and their bytes in another type. No more than CHUNK bytes are held at a time.

numpy has no bfloat16: its 16 bits travel as uint16. They are the upper half of a float32.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]

CHUNK: Final = 4 << 20  # elements converted at a time
DTYPES: Final = {"F64": "<f8", "F32": "<f4", "F16": "<f2", "BF16": "<u2"}  # safetensors' names


class TooLargeForF16(ValueError):
    """A weight beyond F16's range, or none at all (NaN, infinity)."""


class Weight(NamedTuple):
    """Numbers of one tensor: `parts` are stacked along a new first axis where there are several.

    dtype     "F64", "F32", "F16" or "BF16"; parts of BF16 are uint16
    reshaped  the shape of each part, where its view has more axes to say in which order it is read
    """

    parts: tuple[Array, ...]
    dtype: str
    reshaped: tuple[int, ...] | None = None

    @property
    def shape(self) -> tuple[int, ...]:
        """Slowest first, as numpy has it."""
        first = self.reshaped or self.parts[0].shape
        return first if len(self.parts) == 1 else (len(self.parts), *first)

    def map(self, change: Any, reshaped: tuple[int, ...] | None = None) -> Weight:
        """The same with `change` applied to every part; it must return a view or a small array."""
        return Weight(tuple(change(part) for part in self.parts), self.dtype, reshaped)

    def floats(self) -> Array:
        """All of it as float32: for small tensors."""
        stacked = self.parts[0] if len(self.parts) == 1 else np.stack(self.parts)
        return to_floats(stacked, self.dtype)


def of_floats(values: npt.ArrayLike) -> Weight:
    """A weight computed here."""
    return Weight((np.asarray(values, np.float32),), "F32")


def encoded(weight: Weight, kind: str) -> Iterator[bytes]:
    """The bytes of `weight` as `kind` ("F32", "F16", "BF16"), row-major. Raises TooLargeForF16."""
    for part in weight.parts:
        for rows in _row_blocks(part):
            yield _encode(rows, weight.dtype, kind)


def _row_blocks(part: Array) -> Iterator[Array]:
    """Consecutive pieces of at most CHUNK elements, in row-major order, cut along the slowest axes."""
    if part.ndim <= 1 or part.size <= CHUNK:
        for start in range(0, max(len(part), 1), CHUNK) if part.ndim == 1 else [0]:
            yield part[start : start + CHUNK] if part.ndim == 1 else part
        return
    row = part[0].size
    if row > CHUNK:
        for inner in part:
            yield from _row_blocks(inner)
        return
    step = max(1, CHUNK // row)
    for start in range(0, len(part), step):
        yield part[start : start + step]


def _encode(values: Array, dtype: str, kind: str) -> bytes:
    if dtype == kind:
        return np.ascontiguousarray(values).tobytes()
    floats = to_floats(values, dtype)
    if kind == "F32":
        return floats.tobytes()
    if kind == "BF16":
        return _to_bf16(floats).tobytes()
    with np.errstate(over="ignore"):
        halves = floats.astype("<f2")
    if not np.isfinite(halves).all():
        raise TooLargeForF16(f"{float(np.abs(floats[~np.isfinite(halves)]).max()):.4g}")
    return halves.tobytes()


def to_floats(values: Array, dtype: str) -> Array:
    """As contiguous float32; exact for F16 and BF16."""
    if dtype == "BF16":
        return (np.ascontiguousarray(values).astype("<u4") << 16).view("<f4")
    return np.ascontiguousarray(values, "<f4")


def _to_bf16(floats: Array) -> Array:
    """Rounded to the nearest, ties to even; NaN stays NaN."""
    bits = np.ascontiguousarray(floats).view("<u4")
    rounded = (bits + (((bits >> 16) & 1) + np.uint32(0x7FFF))) >> 16
    quiet = (bits >> 16) | np.uint32(0x40)
    nan = (bits & np.uint32(0x7FFFFFFF)) > np.uint32(0x7F800000)
    return np.where(nan, quiet, rounded).astype("<u2")
