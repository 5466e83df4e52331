"""Pages of model files that are mapped into this process."""

from __future__ import annotations

import ctypes
import mmap
import os
import platform
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

from edgellm.contracts.engine import ModelFile
from edgellm_llamacpp.repacking import repacked

_MAPS: Final = Path("/proc/self/maps")


def forget(model: ModelFile) -> None:
    """Take the pages of a model's files out of this process's memory. Whatever is read again comes back by itself.

    Weights that were rearranged are never read from the file again, and would count twice. Linux only.
    """
    if platform.system() != "Linux":
        return
    advise = ctypes.CDLL(None).madvise
    advise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    moved = [of for of in model.tensors if repacked(of.type, of.shape[:2])]  # of experts, each
    for number, path in enumerate((model.path, *model.more)):
        places = [(of.offset, of.nbytes) for of in moved if of.file == number]
        for start, end, offset in _mapped(path.resolve()):
            _set_apart(advise, places, start, end, start - offset)
            advise(start, end - start, mmap.MADV_DONTNEED)


def _set_apart(
    advise: Callable[[int, int, int], int], places: list[tuple[int, int]], start: int, end: int, begin: int
) -> None:
    """Make areas of their own of these offsets and sizes in a file, of which `start` to `end` is mapped.

    `begin`: where the file's first byte would be. What is unmapped of it may be others' memory by now.

    From Linux 6.18 on, who reads a page gets all of the piece that the system's cache holds, up to 2 MiB, as far as the
    area goes: each tensor that is used where it lies would bring the matrices around it back.
    """
    for offset, size in places:
        first = -(-max(begin + offset, start) // mmap.PAGESIZE) * mmap.PAGESIZE
        last = min(begin + offset + size, end) // mmap.PAGESIZE * mmap.PAGESIZE
        if first < last:
            advise(first, last - first, mmap.MADV_RANDOM)  # areas whose advice differs are never joined


def _mapped(path: Path) -> Iterator[tuple[int, int, int]]:
    """Where read-only mappings of this file begin and end, and at which place in the file."""
    name = os.fsencode(path).replace(b"\n", rb"\012")  # as Linux writes it; names may hold whatever else ends a line
    for line in _MAPS.read_bytes().split(b"\n"):
        area, rights, offset, _device, _inode, file = (*line.split(maxsplit=5), *[b""] * 6)[:6]
        if file == name and rights.startswith(b"r-"):
            start, _, end = area.partition(b"-")
            yield int(start, 16), int(end, 16), int(offset, 16)
