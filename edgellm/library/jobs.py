"""Unfinished pulls: models/partial/<key>/ under <key>.lock, one pull at a time, the others follow.

    job.json     what is being fetched, for `edgellm list --partial` and for those who follow (not for pip's wheels)
    N.part       the bytes of file N, N.ranges which of them are here

A job with a job.json can go on after a kill, and stays until somebody pulls it again or prunes; any other is swept.
"""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Final

import msgspec
from msgspec import Meta

from edgellm import platform
from edgellm.errors import UNREADABLE
from edgellm.library.staging import PullProgress, Report
from edgellm.library.transfer.ranges import bytes_done
from edgellm.paths import Paths
from edgellm.small_files import read_small

_FOLLOW_S: Final = 0.2
_JOB: Final = "job.json"


class JobFile(msgspec.Struct, frozen=True):
    """One file of a job. `version` tells one state of an address from another (an ETag)."""

    name: str
    size: Annotated[int, Meta(ge=0)]
    sha256: str | None = None
    version: str = ""


class Job(msgspec.Struct, frozen=True):
    """What job.json says."""

    reference: str  # what to pull to go on with it
    name: str  # what it will be called
    files: tuple[JobFile, ...]

    @property
    def size(self) -> int:
        return sum(file.size for file in self.files)


class Partial(msgspec.Struct, frozen=True):
    """An unfinished pull, as it is listed."""

    key: str
    reference: str
    name: str
    done: int  # bytes
    total: int
    touched: datetime  # UTC
    running: bool


@contextlib.contextmanager
def job(paths: Paths, key: str, report: Report) -> Iterator[Path]:
    """The folder of a job, under its lock. While another process has it, its progress is reported.

    Afterwards the folder is gone, unless it holds a job that can go on and the work failed.
    """
    from filelock import FileLock

    partial = paths.models / "partial"
    folder = partial / key
    partial.mkdir(parents=True, exist_ok=True)
    lock = FileLock(str(partial / f"{key}.lock"))
    _acquire(lock, folder, report)
    finished = False
    try:
        _sweep(partial, key)
        folder.mkdir(exist_ok=True)
        yield folder
        finished = True
    finally:
        if finished or not (folder / _JOB).exists():
            shutil.rmtree(folder, ignore_errors=True)
        lock.release()


def write_job(folder: Path, job: Job) -> None:
    """Make the job in `folder` one that can go on later."""
    platform.write_private(folder / _JOB, msgspec.json.encode(job))


def read_job(folder: Path) -> Job | None:
    try:
        return msgspec.json.decode(read_small(folder / _JOB), type=Job)
    except (OSError, *UNREADABLE):
        return None


def forget(folder: Path) -> None:
    """Begin the job in `folder` anew."""
    for path in folder.iterdir():
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink()


def partials(paths: Paths) -> list[Partial]:
    """Every unfinished pull that can go on, or runs now; the latest first."""
    found = []
    for folder in _folders(paths):
        described = read_job(folder)
        if described is None:
            continue
        states = [path.stat().st_mtime for path in folder.iterdir()]
        found.append(
            Partial(
                folder.name,
                described.reference,
                described.name,
                bytes_here(folder, described),
                described.size,
                datetime.fromtimestamp(max(states, default=0.0), UTC),
                _held(folder),
            )
        )
    return sorted(found, key=lambda each: each.touched, reverse=True)


def drop_partials(paths: Paths) -> int:
    """Delete all that is unfinished and that nobody works on; the bytes freed."""
    from filelock import FileLock, Timeout

    freed = 0
    for folder in _folders(paths):
        lock = FileLock(str(folder.with_name(f"{folder.name}.lock")))
        with contextlib.suppress(Timeout, OSError), lock.acquire(timeout=0):
            freed += sum(_room(path) for path in folder.rglob("*") if path.is_file())
            shutil.rmtree(folder, ignore_errors=True)
    return freed


def _acquire(lock: object, folder: Path, report: Report) -> None:
    from filelock import BaseFileLock, Timeout

    assert isinstance(lock, BaseFileLock)
    timeout = 0.0
    while True:
        try:
            lock.acquire(timeout=timeout)
            return
        except Timeout:
            timeout = _FOLLOW_S
            other = read_job(folder)
            detail = "the same model is being pulled elsewhere; waiting for it"
            if other is None:
                report(PullProgress("resolve", detail=detail))
            else:
                report(PullProgress("download", bytes_here(folder, other), other.size, detail))


def bytes_here(folder: Path, described: Job) -> int:
    """Bytes of a job that have arrived."""
    counted = [bytes_done(folder / f"{index}.ranges") for index in range(len(described.files))]
    return min(sum(counted), described.size)


def _held(folder: Path) -> bool:
    from filelock import FileLock, Timeout

    try:
        with FileLock(str(folder.with_name(f"{folder.name}.lock"))).acquire(timeout=0):
            return False
    except (Timeout, OSError):
        return True


def _room(path: Path) -> int:
    """Bytes that a file, holes left out, takes."""
    state = path.stat()
    return getattr(state, "st_blocks", -(-state.st_size // 512)) * 512


def _folders(paths: Paths) -> list[Path]:
    try:
        return [path for path in (paths.models / "partial").iterdir() if path.is_dir()]
    except OSError:
        return []


def _sweep(partial: Path, own: str) -> None:
    """Remove what killed pulls left that cannot go on, where nobody holds the lock."""
    from filelock import FileLock, Timeout

    for folder in partial.iterdir():
        if folder.name != own and folder.is_dir() and not (folder / _JOB).exists():
            with (
                contextlib.suppress(Timeout, OSError),
                FileLock(str(partial / f"{folder.name}.lock"), timeout=0),
            ):
                shutil.rmtree(folder, ignore_errors=True)
