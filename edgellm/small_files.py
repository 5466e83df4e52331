"""Reading small files that a person, or another program, may have put anything in place of.

A pipe would block for ever and a device never end, so what is read is a regular file of a limited size, or an error
of the system that says what it is instead.
"""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path
from typing import BinaryIO, Final

LARGEST: Final = 16 << 20  # bytes: more than any settings, keys, catalogue or manifest have
_KINDS: Final = (
    (stat.S_ISDIR, "folder"),
    (stat.S_ISFIFO, "pipe"),
    (stat.S_ISSOCK, "socket"),
    (stat.S_ISCHR, "device"),
)


class NotRegular(OSError):
    """What is there is no regular file; `strerror` says what it is."""


def open_regular(path: Path) -> BinaryIO:
    """The file, open for reading and certainly a regular one.

    Raises OSError, and NotRegular, both with `strerror`; ValueError for a name that no system takes.
    """
    _require_regular(path, path.stat().st_mode)  # before it is opened: a device may act then
    # What takes the file's place in between cannot block either: a pipe opens at once this way, and is refused.
    flags = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)
    descriptor = os.open(path, flags)
    try:
        _require_regular(path, os.fstat(descriptor).st_mode)
        return os.fdopen(descriptor, "rb")
    except BaseException:
        os.close(descriptor)
        raise


def read_small(path: Path, limit: int = LARGEST) -> bytes:
    """All of a regular file of at most `limit` bytes. Raises as `open_regular` does, and OSError for a larger one."""
    with open_regular(path) as file:
        return read_within(file, limit)


def read_within(file: BinaryIO, limit: int) -> bytes:
    """What is left of an open file. Raises OSError where that is more than `limit` bytes."""
    raw = file.read(limit + 1)  # not by its size: it may grow meanwhile
    if len(raw) > limit:
        raise OSError(errno.EFBIG, f"it is larger than {_told(limit)}")
    return raw


def read_small_text(path: Path, limit: int = LARGEST) -> str:
    """The same as text: UTF-8, with or without the mark that Windows' editors begin it with.

    Raises as `read_small` does, and OSError for what is no such text.
    """
    raw = read_small(path, limit)
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise OSError(errno.EILSEQ, "it is not text in UTF-8", str(path)) from error


def why(error: Exception) -> object:
    """What an error of these says, without numbers and names."""
    return getattr(error, "strerror", None) or error


def _require_regular(path: Path, mode: int) -> None:
    if not stat.S_ISREG(mode):
        kind = next((name for test, name in _KINDS if test(mode)), "device")
        raise NotRegular(errno.EINVAL, f"it is a {kind}, not a regular file", str(path))


def _told(limit: int) -> str:
    return f"{limit >> 20} MiB" if limit >= 1 << 20 else f"{limit:,} bytes"
