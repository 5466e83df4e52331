"""Large tensors get memory of their own from the system, and give it back.

glibc raises the size from which it does so with every large block that is freed, up to 32 MiB; then blocks of a step
leave holes of all sizes in the heap, and a process takes up to 150 MiB more than it ever held at once, now so and now
otherwise.
"""

from __future__ import annotations

import ctypes
from typing import Final

LARGE: Final = 1 << 20  # bytes: what comes fresh costs page faults, which are little beside the arithmetic on so much
_MMAP_THRESHOLD: Final = -3  # M_MMAP_THRESHOLD, mallopt(3); once set, it stays


def settle() -> bool:
    """Whether this system's allocator has such a threshold."""
    try:
        return bool(ctypes.CDLL(None).mallopt(_MMAP_THRESHOLD, LARGE))
    except (AttributeError, OSError, TypeError):  # not glibc
        return False
