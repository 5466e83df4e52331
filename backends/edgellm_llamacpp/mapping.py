"""Pages of model files that are mapped into this process."""

from __future__ import annotations

import ctypes
import platform
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

_MAPS: Final = Path("/proc/self/maps")
_DONTNEED: Final = 4  # MADV_DONTNEED of Linux: a mapped file's pages stay in the system's cache


def forget(paths: Sequence[Path]) -> None:
    """Take the pages of these files out of this process's memory. Whatever is read again comes back by itself.

    Weights that were rearranged are never read from the file again, and would count twice. Linux only.
    """
    if platform.system() != "Linux":
        return
    advise = ctypes.CDLL(None).madvise
    advise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    for start, end in _mapped({str(path.resolve()) for path in paths}):
        advise(start, end - start, _DONTNEED)


def _mapped(names: set[str]) -> Iterator[tuple[int, int]]:
    """Where read-only mappings of these files begin and end."""
    for line in _MAPS.read_text(encoding="utf-8", errors="surrogateescape").splitlines():
        area, rights, *_, name = line.split(maxsplit=5)
        if name in names and rights.startswith("r-"):
            start, _, end = area.partition("-")
            yield int(start, 16), int(end, 16)
