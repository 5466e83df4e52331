"""Tokens by their logits, from large to small, ties by id: as much of that order as is asked for.

A vocabulary holds up to some 260,000 tokens and a nucleus a few dozen, so nothing is sorted whole unless it must be:
the head of the order is found with two passes over the row.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float32]
Ids = npt.NDArray[np.intp]


def descending(logits: Floats, count: int) -> Ids:
    """Ids of at least the `count` largest logits, in order; more of them where that costs nothing.

    The row is cut into groups, more than `count` of them, and the largest of each is found. `count` groups hold
    something at least as large as the `count`-th largest of these; so what is smaller is not among the `count` largest.
    """
    size = logits.size
    width = min(64, size // (4 * count))
    if width < 4:
        return in_order(logits, np.arange(size))
    groups = size // width
    largest = logits[: groups * width].reshape(width, groups).max(axis=0)
    bound = np.partition(largest, groups - count)[groups - count]
    ids = np.flatnonzero(logits >= bound)
    return in_order(logits[ids], ids)


def in_order(values: Floats, ids: Ids) -> Ids:
    """`ids`, ascending, reordered by their values from large to small, ties by id.

    Value and index become one integer, because numpy sorts integers with vector instructions, and nothing else stably
    at that speed. The bits of a float order like a signed integer once those of negative numbers are flipped.
    """
    bits = (values + np.float32(0)).view(np.int32)  # adding 0 makes -0 and 0 the same
    keys = (bits ^ ((bits >> 31) & np.int32(0x7FFFFFFF))).astype(np.int64)
    np.negative(keys, out=keys)
    keys <<= 32
    keys += np.arange(ids.size)
    keys.sort()
    keys &= 0xFFFFFFFF
    return ids[keys]
