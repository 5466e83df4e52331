"""What this machine lets the process use: physical cores worth computing on, and memory.

`cores()` and `memory()` ask the running system; the functions they are made of are pure or read below a `root` folder.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterable
from pathlib import Path

import msgspec

from edgellm.placement import cgroups
from edgellm.placement.cgroups import read

_ROOT = Path("/")
# A core this much slower than the fastest makes the others wait at the end of every layer.
_SLOW_CORE = 0.5
# x86 does not say how much slower its efficiency cores are, only which they are: below the line in any case.
_EFFICIENCY_SPEED = 0.4


class Memory(msgspec.Struct, frozen=True):
    """Bytes: `total` is what the process could ever have, `available` what it can take now without swapping."""

    total: int
    available: int


class Cpu(msgspec.Struct, frozen=True):
    """One logical CPU: the logical CPUs of its physical core, and its speed relative to the fastest (0..1]."""

    number: int
    core: frozenset[int]
    speed: float


def cores() -> int:
    """Physical cores worth one compute thread each, at least 1.

    Counts a core with two hyper-threads once, only cores the process may run on, no efficiency cores where there are
    faster ones, and no more than a container's CPU quota.
    """
    allowed = _affinity()
    cpus = read_cpus(_ROOT)
    count = usable_cores(cpus, allowed) if cpus else _counted_by_system(len(allowed))
    return within_quota(count, cgroups.cpu_quota(_ROOT))


def memory() -> Memory:
    """Memory of the machine, or of the control group where that is tighter."""
    import psutil

    host = psutil.virtual_memory()
    return within_limits(Memory(int(host.total), int(host.available)), cgroups.memory_limits(_ROOT))


def usable_cores(cpus: Iterable[Cpu], allowed: Collection[int]) -> int:
    """Physical cores among `allowed` logical CPUs, without those much slower than the fastest of them."""
    usable = [cpu for cpu in cpus if cpu.number in allowed]
    fastest = max((cpu.speed for cpu in usable), default=1.0)
    return max(1, len({cpu.core for cpu in usable if cpu.speed >= fastest * _SLOW_CORE}))


def within_quota(count: int, quota: float | None) -> int:
    """`count` cores cut to a quota in CPUs. Rounded down: a throttled thread holds up all others at every layer."""
    return count if quota is None else max(1, min(count, int(quota)))


def within_limits(host: Memory, limits: Iterable[cgroups.MemoryLimit]) -> Memory:
    """`host` memory cut to every limit around the process."""
    total, available = host.total, host.available
    for limit in limits:
        total = min(total, limit.limit)
        available = min(available, max(0, limit.limit - limit.used))
    return Memory(total, available)


def read_cpus(root: Path) -> list[Cpu]:
    """The logical CPUs as Linux describes them in sysfs; none where it does not.

    Efficiency cores: x86 lists them under `cpu_atom`, ARM gives each CPU a `cpu_capacity` up to 1024.
    """
    folder = root / "sys/devices/system/cpu"
    slow = parse_list(read(root / "sys/devices/cpu_atom/cpus"))
    cpus = []
    for number in sorted(parse_list(read(folder / "online"))):
        topology = folder / f"cpu{number}" / "topology"
        siblings = parse_list(read(topology / "core_cpus_list") or read(topology / "thread_siblings_list"))
        capacity = read(folder / f"cpu{number}" / "cpu_capacity").strip()
        speed = int(capacity) / 1024 if capacity.isdigit() and int(capacity) else 1.0
        cpus.append(Cpu(number, frozenset(siblings or {number}), _EFFICIENCY_SPEED if number in slow else speed))
    return cpus


def parse_list(text: str) -> set[int]:
    """The kernel's list format: "0-3,8" -> {0, 1, 2, 3, 8}. Malformed parts are left out."""
    numbers: set[int] = set()
    for part in text.strip().split(","):
        found = re.fullmatch(r"(\d{1,5})(?:-(\d{1,5}))?", part.strip())
        if found:
            numbers.update(range(int(found[1]), int(found[2] or found[1]) + 1))
    return numbers


def cpu_name() -> str:
    """The processor's marketing name, or its architecture where the system does not tell."""
    import platform

    return (
        parse_cpu_name(read(_ROOT / "proc/cpuinfo"))
        or _sysctl("machdep.cpu.brand_string")
        or (platform.processor() or platform.machine() or "unknown processor")
    )


def parse_cpu_name(cpuinfo: str) -> str | None:
    """The name in /proc/cpuinfo, spaces and trademark signs tidied."""
    found = re.search(r"^(?:model name|Model|Hardware)\s*:\s*(.+)$", cpuinfo, re.MULTILINE)
    return " ".join(re.sub(r"\((?:R|TM|tm)\)", "", found[1]).split()) if found else None


def _affinity() -> set[int]:
    """Logical CPUs the process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return set(os.sched_getaffinity(0))
    import psutil

    process = psutil.Process()
    if hasattr(process, "cpu_affinity"):
        return set(process.cpu_affinity())
    return set(range(os.cpu_count() or 1))


def _counted_by_system(allowed: int) -> int:
    """Physical cores where there is no sysfs: macOS counts its performance cores, others all of them."""
    fast = _sysctl("hw.perflevel0.physicalcpu")
    if fast.isdigit() and int(fast):
        return min(int(fast), allowed)
    import psutil

    return max(1, min(psutil.cpu_count(logical=False) or allowed, allowed))


def _sysctl(name: str) -> str:
    """A value of macOS's sysctl; empty elsewhere."""
    import subprocess

    try:
        found = subprocess.run(["/usr/sbin/sysctl", "-n", name], capture_output=True, text=True, timeout=2, check=False)
    except (OSError, subprocess.SubprocessError):
        return ""
    return found.stdout.strip() if found.returncode == 0 else ""
