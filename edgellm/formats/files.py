"""Opening files that may be anything, and saying what is wrong with their contents."""

from __future__ import annotations

import contextlib
import errno
import mmap
import os
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, NamedTuple

import msgspec

from edgellm.errors import BadModelFile
from edgellm.small_files import NotRegular, open_regular, why

_LOOK = "check the path and its permissions"
_SCARCE = frozenset({errno.ENOMEM, errno.EMFILE, errno.ENFILE})


class OpenFile(NamedTuple):
    """A regular file that is open, and its length in bytes."""

    file: BinaryIO
    size: int


class More(msgspec.Struct, frozen=True):
    """The beginning of a file that was not enough: `total` bytes from its start are worth having next."""

    total: int


@contextlib.contextmanager
def opened(path: Path, suffix: str) -> Iterator[OpenFile]:
    """`path`, open for reading and certainly a regular file; `suffix` is what such files are called, for the hint.

    Raises BadModelFile naming the file; so does the body, for errors of the system and for a file that shrinks.
    """
    try:
        with open_regular(path) as file:
            yield OpenFile(file, os.fstat(file.fileno()).st_size)
    except NotRegular as error:
        raise BadModelFile(f"{path}: {why(error)}", hint=f"name a {suffix} file") from error
    except (OSError, ValueError) as error:  # ValueError: a path no system takes, a file that shrinks meanwhile
        scarce = isinstance(error, OSError) and error.errno in _SCARCE
        hint = "close other programs, or raise the limits that this one runs under" if scarce else _LOOK
        raise BadModelFile(f"{path}: {why(error)}", hint=hint) from error


@contextlib.contextmanager
def mapped(path: Path, suffix: str, limit: int, least: int) -> Iterator[tuple[mmap.mmap, int]]:
    """The first `limit` bytes of `path` as a memory map, and the file's whole length.

    Raises BadModelFile as `opened` does, and for a file of fewer than `least` bytes.
    """
    with opened(path, suffix) as (file, size):
        if size < least:
            raise bad(path, "the file", f"{size} bytes long", f"a {suffix} header needs {least}")
        with mmap.mmap(file.fileno(), min(size, limit), access=mmap.ACCESS_READ) as data:
            yield data, size


def bad(path: Path, field: str, value: object, why: str, hint: str | None = None) -> BadModelFile:
    """The error for a field of a file that cannot be so; the default hint is for damage."""
    told = f"{path}: {shown(field)} is {shown(value)}: {why}"
    return BadModelFile(told, hint=hint or "the file is damaged or not what its name says; fetch it again")


def shown(value: object) -> str:
    """Text from a file made safe for a terminal and a log line: escaped and short."""
    text = value if isinstance(value, str) else repr(value)
    text = "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text[:200])
    return text if len(text) <= 120 else text[:117] + "…"
