"""What a process takes of the machine's memory, beside what was planned for it.

With so much for pages of libraries' files as was planned: of those files the system maps what it has cached around the
pages that are used, and takes it back as it likes. The same process has twice as much of them on one day as on another.
"""

from __future__ import annotations

import threading
from pathlib import Path

import psutil

_EVERY = 0.1  # seconds between two looks; each reads the whole map of the process: some milliseconds


def resident(pid: int, libraries: int) -> int:
    """Resident bytes now, with `libraries` for pages of libraries' files; off Linux, with those that there are."""
    process = psutil.Process(pid)
    whole = _status(pid, "VmRSS")
    return int(process.memory_info().rss) if whole is None else whole - _mapped(process) + libraries


class Watch(threading.Thread):
    """For the most that a process takes: looks at it again and again.

    What is short passes between two looks. The system marks the most of all pages, but not of whose: from this mark the
    most pages of libraries that were seen are taken off, also where they came later. So neither figure says too much,
    and the larger one counts. The mark alone, read at the end, would: with all pages that were taken back since.
    """

    def __init__(self, pid: int, libraries: int) -> None:
        super().__init__(daemon=True)
        self._process = psutil.Process(pid)
        self._libraries = libraries
        self._over = threading.Event()
        self._most = self._mapped = self._most_mapped = 0
        self.start()

    def run(self) -> None:
        while not self._over.is_set():
            self._look()
            self._over.wait(_EVERY)

    def _look(self) -> None:
        whole, before = _status(self._process.pid, "VmRSS"), self._mapped
        if whole is None:
            self._most = max(self._most, int(self._process.memory_info().rss))
            return
        self._mapped = _mapped(self._process)
        self._most = max(self._most, whole - max(before, self._mapped))  # some may have gone between the two readings
        self._most_mapped = max(self._most_mapped, self._mapped)

    def peak(self) -> int:
        """Bytes, as `resident` counts them. The watch is over."""
        self._over.set()
        self.join()
        self._look()
        marked = _status(self._process.pid, "VmHWM")
        if marked is None:
            return self._most
        return max(self._most, marked - self._most_mapped) + self._libraries


def _status(pid: int, field: str) -> int | None:
    """Bytes; None where the system does not tell."""
    status = Path(f"/proc/{pid}/status")
    if not status.exists():
        return None
    lines = dict(line.split(":", 1) for line in status.read_text().splitlines())
    return int(lines[field].split()[0]) * 1024


def _mapped(process: psutil.Process) -> int:
    """Bytes of libraries' files that are resident, as they are on disk."""
    return sum(part.rss - part.anonymous for part in process.memory_maps() if ".so" in Path(part.path).suffixes)
