"""Which bytes of a file are here: a table on disk beside it, a line per piece, right whenever the process dies.

A line holds how many bytes of its piece have been written from the piece's start, and their CRC-32. A CRC's state is
its value, so it goes on after a restart where a digest would have to begin anew; it tells bytes that never reached the
disk (a power cut) from those that did. Whether the bytes are the right ones, the file's SHA-256 decides.
"""

from __future__ import annotations

import zlib
from pathlib import Path
from struct import Struct, error
from typing import Final

from edgellm.small_files import read_small

PIECE: Final = 4 << 20  # bytes; the last piece of a file may be shorter
_LINE: Final = Struct("<II")


class RangeTable:
    """One file's account. Not thread-safe: its user holds a lock."""

    def __init__(self, path: Path, size: int, piece: int = PIECE) -> None:
        """Open the table at `path`, or begin one; one of another length is begun anew."""
        self.size = size
        self.piece = piece
        self.count = -(-size // piece)
        self._lines = _read(path, self.count) or [(0, 0)] * self.count
        for index, (done, _) in enumerate(self._lines):
            if done > self.length(index):
                self._lines[index] = (0, 0)
        self.total = sum(done for done, _ in self._lines)
        fresh = not path.exists() or path.stat().st_size != self.count * _LINE.size
        self._file = path.open("w+b" if fresh else "r+b", buffering=0)
        if fresh:
            self._file.write(bytes(self.count * _LINE.size))

    def close(self) -> None:
        self._file.close()

    def start(self, index: int) -> int:
        """The first byte of a piece."""
        return index * self.piece

    def length(self, index: int) -> int:
        """Bytes of a piece when it is whole."""
        return min(self.piece, self.size - index * self.piece)

    def done(self, index: int) -> int:
        """Bytes of a piece that are here."""
        return self._lines[index][0]

    def whole(self, index: int) -> bool:
        return self._lines[index][0] == self.length(index)

    @property
    def complete(self) -> bool:
        return self.total == self.size

    def add(self, index: int, data: bytes | memoryview) -> None:
        """Note that `data` has been written after what was there of the piece."""
        done, crc = self._lines[index]
        self._set(index, done + len(data), zlib.crc32(data, crc))

    def clear(self, index: int) -> None:
        """Note that nothing of the piece is here."""
        self._set(index, 0, 0)

    def matches(self, index: int, data: bytes) -> bool:
        """Whether `data` is what the table says is here of the piece."""
        return self._lines[index] == (len(data), zlib.crc32(data))

    def _set(self, index: int, done: int, crc: int) -> None:
        self.total += done - self._lines[index][0]
        self._lines[index] = (done, crc)
        self._file.seek(index * _LINE.size)
        self._file.write(_LINE.pack(done, crc))


def bytes_done(path: Path) -> int:
    """Bytes that the table at `path` accounts for, while somebody else writes it; 0 where there is none."""
    try:
        return sum(done for done, _ in _LINE.iter_unpack(read_small(path)))
    except (OSError, error):
        return 0


def _read(path: Path, count: int) -> list[tuple[int, int]] | None:
    try:
        raw = read_small(path)
    except FileNotFoundError:
        return None
    return list(_LINE.iter_unpack(raw)) if len(raw) == count * _LINE.size else None
