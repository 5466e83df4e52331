"""One remote file in the folder of a job: look at its beginning, then fetch it all, going on from what is there.

look   what the file is (its GGUF header, read by range) and how long; the bytes looked at count as fetched
fetch  everything, hashed; the part stays where it is when that fails
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Final, TypeVar

import msgspec

from edgellm.contracts.engine import ModelFile
from edgellm.errors import ChecksumMismatch
from edgellm.formats.gguf import FIRST_READ, read_prefix
from edgellm.library.jobs import JobFile
from edgellm.library.staging import PullProgress, Report, Staged
from edgellm.library.transfer.download import Download, Tuning
from edgellm.library.transfer.faults import Trouble, patiently
from edgellm.library.transfer.link import Explain, Link, Probe, Remote
from edgellm.library.transfer.ranges import RangeTable
from edgellm.library.transfer.target import FileTarget, Target

_T = TypeVar("_T")
LONGEST_HEADER: Final = 64 << 20  # bytes worth fetching to know a file before the rest; real ones have 20 MiB at most
_FIRST_TRIES: Final = 4  # before anything has been heard of a file


class Sight(msgspec.Struct, frozen=True):
    """What is known of a remote file before it is fetched. `model` is None where its header could not be read early."""

    file: JobFile
    model: ModelFile | None
    beginning: bytes


class Source:
    """A remote file with its link; close it after use."""

    def __init__(self, remote: Remote, explain: Explain, way_out: str, tuning: Tuning) -> None:
        self.remote = remote
        self._tuning = tuning
        self._way_out = way_out
        self._link = Link(remote, explain, stall_s=tuning.stall_s)

    def close(self) -> None:
        self._link.close()

    def look(self, report: Report) -> Sight:
        """The file's length, version and header. Raises EdgeError: BadModelFile when it is no model at all."""
        probe = self._patiently(partial(self._link.probe, FIRST_READ), report)
        beginning, model = probe.data, None
        while model is None:
            found = read_prefix(Path(self.remote.name), beginning, probe.size)
            if isinstance(found, ModelFile):
                model = found
            elif found.total > LONGEST_HEADER:
                break
            else:
                report(PullProgress("resolve", detail=f"reading the header of {self.remote.name}"))
                beginning = self._more(beginning, found.total, probe, report)
        version = "" if self.remote.sha256 else probe.etag
        return Sight(JobFile(self.remote.name, probe.size, self.remote.sha256, version), model, beginning)

    def _more(self, beginning: bytes, total: int, probe: Probe, report: Report) -> bytes:
        if not probe.ranged:  # from the start, then
            return self._patiently(partial(self._link.probe, total), report).data
        return beginning + self._patiently(partial(self._piece, len(beginning), total, probe.size), report)

    def _piece(self, start: int, end: int, size: int) -> bytes:
        with self._link.open(start, end, size) as pieces:
            data = b"".join(pieces)
        if len(data) != end - start:
            raise Trouble(f"the connection to {self._link.host} ended early")
        return data

    def fetch(self, sight: Sight, folder: Path, index: int, report: Report) -> Staged:
        """All of the file as `folder`/`index`.part, whole, hashed and on the disk. Raises as `fetch_into` does."""
        path = folder / f"{index}.part"
        target = FileTarget(path, sight.file.size)
        digest = self.fetch_into(sight, target, folder / f"{index}.ranges", report)
        return Staged(path, digest, sight.file.size)

    def fetch_into(self, sight: Sight, target: Target, account: Path, report: Report) -> str:
        """All of the file into `target`, which is closed afterwards; its digest. `account` remembers what has arrived.

        Raises ChecksumMismatch (the next pull begins anew), DownloadFailed, Overloaded, other EdgeErrors, OSError.
        """
        table = RangeTable(account, sight.file.size, self._tuning.piece)
        try:
            absorb(sight.beginning, target, table)
            return Download(self._link, target, table, report, self._tuning).run()
        except ChecksumMismatch:
            for index in range(table.count):
                table.clear(index)
            raise
        finally:
            table.close()
            target.close()

    def _patiently(self, call: Callable[[], _T], report: Report) -> _T:
        return patiently(
            call,
            f"cannot fetch {self.remote.name}",
            self._way_out,
            report,
            tries=_FIRST_TRIES,
            backoff_s=self._tuning.backoff_s,
            longest_wait_s=self._tuning.longest_wait_s,
        )


def absorb(beginning: bytes, target: Target, table: RangeTable) -> None:
    """Put what has been read of a file's beginning in its place, where nothing is yet."""
    for index in range(table.count):
        start = table.start(index)
        if start >= len(beginning):
            return
        if table.done(index) == 0:
            data = beginning[start : start + table.length(index)]
            target.write(start, data)
            table.add(index, data)
