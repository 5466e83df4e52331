"""What a pool reckons with: models wanted, models admitted, and the memory these leave. No tasks, no waiting."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from edgellm.contracts.status import LoadedModel
from edgellm.engine.protocol import Load
from edgellm.engine.supervisor import LocalModel
from edgellm.placement.machine import Memory
from edgellm.plugins import title


@dataclass(frozen=True)
class ModelPlan:
    """How to load a model, and the bytes it is predicted to take."""

    load: Load
    size: int


@dataclass(frozen=True)
class Wanted:
    """A model that a request needs.

    digest    of its file: a loaded model of the same name and another digest is replaced
    context   tokens it must take; 0: whatever it was loaded with is fine
    plan      decides its placement in the memory that would be there. Called on a thread, only when it has to be
              loaded. Raises EdgeError (InsufficientMemory naming need and have, BadModelFile …)
    """

    name: str
    digest: str
    plan: Callable[[Memory], ModelPlan]
    context: int = 0


class Entry:
    """One admitted model."""

    def __init__(self, wanted: Wanted, plan: ModelPlan, model: LocalModel) -> None:
        self.name = wanted.name
        self.digest = wanted.digest
        self.context = plan.load.placement.context
        self.size = plan.size
        self.model = model
        self.leases = 0
        self.idle = asyncio.Event()
        self.keep_alive_s = 0.0
        self.used()
        self.timer: asyncio.TimerHandle | None = None
        self.unloading: asyncio.Task[None] | None = None
        self.yielding: asyncio.Event | None = None  # another model waits for its place; set when that is over
        self.retiring = False  # somebody needs it loaded differently: takes no new requests

    def used(self) -> None:
        """It is used now. Who was used last is told by a clock that nobody sets."""
        self.last_used = time.monotonic()
        self.last_used_at = time.time()

    @property
    def expires_at(self) -> float | None:
        """Unix time at which it is unloaded, by the clock as it is set now."""
        if self.timer is None:
            return None
        left = self.timer.when() - asyncio.get_running_loop().time()
        return time.time() + left

    @property
    def reserved(self) -> int:
        """Bytes it holds or is about to take."""
        about_to_load = self.model.state == "stopped" and self.leases > 0
        return self.size if about_to_load or self.model.state not in ("stopped", "failed") else 0

    @property
    def resident(self) -> int:
        """Bytes it holds already, and the system does not count as available."""
        return self.size if self.model.state in ("ready", "draining") else 0

    @property
    def dead(self) -> bool:
        """It failed, and may be tried again."""
        return self.model.state == "failed" and self.model.refusal is None

    def serves(self, wanted: Wanted) -> bool:
        return not self.retiring and self.digest == wanted.digest and self.context >= wanted.context


def memory_now(memory: Memory, entries: Iterable[Entry]) -> Memory:
    """What a new model can count on: what the system has, less what `entries` are promised and have not taken yet.

    Mapped weights are page cache, which the system calls available: so never more than total less all promises.
    """
    entries = list(entries)
    promised = sum(entry.reserved for entry in entries)
    pending = sum(max(0, entry.reserved - entry.resident) for entry in entries)
    return Memory(memory.total, max(0, min(memory.available - pending, memory.total - promised)))


def memory_if_idle_left(memory: Memory, entries: Iterable[Entry]) -> Memory:
    """The same, if every idle model were unloaded."""
    busy, freed = [], 0
    for entry in entries:
        if entry.leases and entry.unloading is None:
            busy.append(entry)
        else:
            freed += entry.resident
    return memory_now(Memory(memory.total, min(memory.total, memory.available + freed)), busy)


def memory_if_all_left(memory: Memory, entries: Iterable[Entry]) -> Memory:
    """The same, if every model were unloaded."""
    return Memory(memory.total, min(memory.total, memory.available + sum(entry.resident for entry in entries)))


def describe(entry: Entry) -> LoadedModel:
    """What is known of it now: once it is loaded, the room it has, which may be less than was planned."""
    health = entry.model.status()
    beat = entry.model.heartbeat
    room = entry.model.info or entry.model.load.placement
    return LoadedModel(
        name=entry.name,
        state=health.state,
        size=entry.size,
        context=room.context,
        capacity=room.capacity,
        kv_used=beat.kv_used if beat is not None else 0,
        suspended=beat.suspended if beat is not None else 0,
        running=health.running,
        waiting=health.waiting,
        last_used=entry.last_used_at,
        expires_at=entry.expires_at,
        pid=entry.model.pid,
        detail=health.detail,
        engine=title(entry.model.load.engine),
        restarts=entry.model.restarts,
    )
