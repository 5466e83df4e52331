"""Getting bytes onto the disk safely: progress, free space, hashing while writing, fsync, names for unfinished work."""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Final, Literal

import msgspec

from edgellm import platform, units
from edgellm.errors import DiskFull, EdgeError, LibraryError

Stage = Literal["resolve", "download", "verify", "copy", "convert", "publish"]

CHUNK: Final = 1 << 20  # bytes read, hashed and written at a time
REPORT_S: Final = 0.1  # seconds between two reports of one stage
SPARE: Final = 64 << 20  # bytes to leave free on the disk


class PullProgress(msgspec.Struct, frozen=True):
    """How far a pull is. Bytes; `total` 0 where it is not known."""

    stage: Stage
    done: int = 0
    total: int = 0
    detail: str = ""  # what it waits for, when it does


Report = Callable[[PullProgress], None]


class Staged(msgspec.Struct, frozen=True):
    """A file written, hashed and on disk, not yet part of the store."""

    path: Path
    digest: str  # "sha256:" and 64 hex digits
    size: int


class Meter:
    """Reports the bytes of one stage, not more often than every REPORT_S, and always the last."""

    def __init__(self, report: Report, stage: Stage, total: int) -> None:
        self._report = report
        self._stage = stage
        self._total = total
        self._done = 0
        self._due = 0.0

    def add(self, count: int) -> None:
        self._done += count
        now = time.monotonic()
        if now >= self._due or self._done == self._total:
            self._due = now + REPORT_S
            self._report(PullProgress(self._stage, self._done, self._total))


def write_hashed(chunks: Iterable[bytes], target: Path, meter: Meter) -> Staged:
    """Write `chunks` to `target`, hashing, until they end; returns once they are on the disk."""
    digest = hashlib.sha256()
    size = 0
    with target.open("wb") as out:
        for chunk in chunks:
            out.write(chunk)
            digest.update(chunk)
            size += len(chunk)
            meter.add(len(chunk))
        out.flush()
        os.fsync(out.fileno())
    return Staged(target, f"sha256:{digest.hexdigest()}", size)


def hash_file(path: Path, meter: Meter) -> str:
    """The digest of a file's contents."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        for chunk in iter(lambda: file.read(CHUNK), b""):
            digest.update(chunk)
            meter.add(len(chunk))
    return f"sha256:{digest.hexdigest()}"


def require_space(folder: Path, need: int, what: str) -> None:
    """Raise DiskFull unless `need` bytes and some to spare are free where `folder` is."""
    free = shutil.disk_usage(folder).free
    if free < need + SPARE:
        raise DiskFull(
            f"{what} needs {units.size(need)} in {folder}; {units.size(max(0, free - SPARE))} can be used",
            hint="free some space (`edgellm rm NAME` removes a model), or set EDGELLM_HOME to a folder on another disk",
        )


def publish_file(source: Path, target: Path) -> None:
    """Move a finished, fsynced file to its final name in one step, and make the move itself last."""
    target.parent.mkdir(parents=True, exist_ok=True)
    source.replace(target)
    sync_folder(target.parent)


def sync_folder(folder: Path) -> None:
    """Flush a folder's entries to disk where the system can (Windows cannot open folders, and needs not)."""
    with contextlib.suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


@contextlib.contextmanager
def disk_errors(doing: str) -> Iterator[None]:
    """Turn what the operating system refuses into DiskFull or LibraryError; `doing` begins the message."""
    try:
        yield
    except EdgeError:
        raise
    except OSError as error:
        where = f" ({error.filename})" if error.filename else ""
        reason = f"{doing}: {error.strerror or error}{where}"
        if platform.disk_is_full(error):
            raise DiskFull(reason, hint="free some space, or set EDGELLM_HOME to a folder on another disk") from error
        raise LibraryError(reason, hint="check the folder's permissions and the disk") from error
