"""CPU quota and memory limits of Linux control groups, v1 and v2, as containers and services set them.

Source: the kernel's Documentation/admin-guide/cgroup-v1 and cgroup-v2.rst. Everything reads below a `root` folder, so
that tests give it a made-up tree; where there is no such tree (other systems) there are no limits.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec

# v1 writes "no limit" as the largest multiple of the page size; anything this large is none.
_UNLIMITED = 1 << 60


class Group(msgspec.Struct, frozen=True):
    """One control group as folders, from the process's own up to the top that can be seen."""

    version: int  # 1 or 2
    folders: tuple[Path, ...]


class MemoryLimit(msgspec.Struct, frozen=True):
    """A limit in force, bytes. `used` leaves out file pages that the kernel drops when memory is needed."""

    limit: int
    used: int


def cpu_quota(root: Path) -> float | None:
    """CPUs' worth of time the process may use, the smallest over all enclosing groups; None: no quota."""
    quotas = [quota for group in _groups(root, "cpu") for folder in group.folders for quota in _quota(group, folder)]
    return min(quotas, default=None)


def memory_limits(root: Path) -> list[MemoryLimit]:
    """Every memory limit around the process, innermost first."""
    return [
        limit for group in _groups(root, "memory") for folder in group.folders for limit in _memory_limit(group, folder)
    ]


def _quota(group: Group, folder: Path) -> Iterator[float]:
    if group.version == 2:
        words = read(folder / "cpu.max").split()
        quota, period = (_number(words[0]), _number(words[1])) if len(words) == 2 else (None, None)
    else:
        quota, period = (
            _number(read(folder / "cpu.cfs_quota_us")),
            _number(read(folder / "cpu.cfs_period_us")),
        )
    if quota is not None and period is not None and quota > 0 and period > 0:
        yield quota / period


def _memory_limit(group: Group, folder: Path) -> Iterator[MemoryLimit]:
    names = (
        ("memory.max", "memory.current") if group.version == 2 else ("memory.limit_in_bytes", "memory.usage_in_bytes")
    )
    limit, used = (_number(read(folder / name)) for name in names)
    if limit is None or not 0 < limit < _UNLIMITED:
        return
    key = "inactive_file" if group.version == 2 else "total_inactive_file"
    droppable = next(
        (int(value) for name, _, value in _fields(read(folder / "memory.stat")) if name == key and value.isdigit()),
        0,
    )
    yield MemoryLimit(limit, max(0, (used or 0) - droppable))


def _groups(root: Path, controller: str) -> Iterator[Group]:
    """The group hierarchies in which the process has `controller`: from /proc/self/cgroup and mountinfo."""
    membership = [line.split(":", 2) for line in read(root / "proc/self/cgroup").splitlines()]
    for mount_root, mount_point, kind, options in _mounts(root):
        for fields in membership:
            if len(fields) != 3:
                continue
            _, controllers, path = fields
            if kind == "cgroup2" and controllers == "":
                yield Group(2, _folders(root, mount_root, mount_point, path))
            elif kind == "cgroup" and controller in controllers.split(",") and controller in options:
                yield Group(1, _folders(root, mount_root, mount_point, path))


def _mounts(root: Path) -> Iterator[tuple[str, str, str, list[str]]]:
    """(root within the hierarchy, mount point, type, options) of every cgroup mount; proc(5), mountinfo."""
    for line in read(root / "proc/self/mountinfo").splitlines():
        before, _, after = line.partition(" - ")
        left, right = before.split(), after.split()
        if len(left) >= 5 and len(right) >= 3 and right[0] in ("cgroup", "cgroup2"):
            yield left[3], left[4], right[0], right[2].split(",")


def _folders(root: Path, mount_root: str, mount_point: str, path: str) -> tuple[Path, ...]:
    """The folders from the group at `path` up to the mount point.

    Without a cgroup namespace `path` is the host's and the mount shows only part of the hierarchy; where the group
    cannot be seen below the mount, the mount point itself is the nearest thing to it.
    """
    top = root / mount_point.lstrip("/")
    inside = path
    if mount_root != "/" and (path == mount_root or path.startswith(mount_root + "/")):
        inside = path[len(mount_root) :]
    parts = [part for part in inside.split("/") if part not in ("", ".", "..")]
    folders = [top.joinpath(*parts[:depth]) for depth in range(len(parts), -1, -1)]
    return tuple(folder for folder in folders if folder.is_dir())


def read(path: Path) -> str:
    """A small file of the kernel's as text; empty where it cannot be read."""
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def _number(text: str) -> int | None:
    try:
        return int(text)
    except ValueError:  # "max", or no such file
        return None


def _fields(text: str) -> Iterator[tuple[str, str, str]]:
    return (line.partition(" ") for line in text.splitlines())
