"""What a process takes of the machine's memory, beside what was planned for it."""

from __future__ import annotations

from pathlib import Path

import psutil


def resident(pid: int, libraries: int, *, peak: bool) -> int:
    """Resident bytes now, or the most so far, with `libraries` for pages of libraries' files; without, off Linux.

    Of those files the system maps what it has cached around the pages that are used, and takes it back as it likes: the
    same process has twice as much of them on one day as on another.
    """
    process = psutil.Process(pid)
    status = Path(f"/proc/{pid}/status")
    if not status.exists():
        return int(process.memory_info().rss)
    lines = dict(line.split(":", 1) for line in status.read_text().splitlines())
    whole = int(lines["VmHWM" if peak else "VmRSS"].split()[0]) * 1024
    mapped = [part.rss - part.anonymous for part in process.memory_maps() if ".so" in Path(part.path).suffixes]
    return whole - int(sum(mapped)) + libraries
