"""Where the bytes of one remote file go, by their offset in it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Protocol


class Target(Protocol):
    """Random access for writing and reading back. Each thread has one of its own (`again`)."""

    def again(self) -> Target:
        """The same place, to be used by another thread."""
        ...

    def write(self, offset: int, data: bytes | memoryview) -> None: ...

    def read(self, offset: int, count: int) -> bytes: ...

    def sync(self) -> None:
        """Return once everything written is on the disk."""
        ...

    def close(self) -> None: ...


class FileTarget:
    """One file, as long as its remote from the start; what has not been written takes no room."""

    def __init__(self, path: Path, size: int) -> None:
        self._path = path
        self._size = size
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | getattr(os, "O_BINARY", 0), 0o644)
        self._file = os.fdopen(descriptor, "r+b", buffering=0)
        if os.fstat(descriptor).st_size != size:
            self._file.truncate(size)

    def again(self) -> FileTarget:
        return FileTarget(self._path, self._size)

    def write(self, offset: int, data: bytes | memoryview) -> None:
        self._file.seek(offset)
        view = memoryview(data)
        while view:
            view = view[self._file.write(view) :]

    def read(self, offset: int, count: int) -> bytes:
        self._file.seek(offset)
        parts = []
        while count and (data := self._file.read(count)):
            parts.append(data)
            count -= len(data)
        return b"".join(parts)

    def sync(self) -> None:
        os.fsync(self._file.fileno())

    def close(self) -> None:
        self._file.close()
