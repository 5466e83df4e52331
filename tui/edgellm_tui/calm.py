"""No pauses while text comes."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

_NEVER = 1 << 30


def settle() -> None:
    """What is there at the start stays for good: collections need not look at it again."""
    gc.collect()
    gc.freeze()


@contextmanager
def calm() -> Iterator[None]:
    """Put off the collections of the oldest garbage, which stop the screen for a tenth of a second."""
    before = gc.get_threshold()
    gc.set_threshold(before[0], before[1], _NEVER)
    try:
        yield
    finally:
        gc.set_threshold(*before)
