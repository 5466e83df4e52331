"""ModelPool: which models are in memory. Loads each once, makes room by unloading idle ones, unloads what is not used.

A model is reserved its predicted bytes from the moment it is admitted, so two that load at once do not both count on
the same memory. Least recently used goes first; a model with a request is never taken away.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import aclosing, asynccontextmanager

import msgspec

from edgellm.config import Settings
from edgellm.contracts.events import Event, Failed
from edgellm.contracts.status import LoadedModel
from edgellm.engine.admission import (
    Entry,
    ModelPlan,
    Wanted,
    describe,
    memory_if_all_left,
    memory_if_idle_left,
    memory_now,
)
from edgellm.engine.process import within
from edgellm.engine.protocol import Load, Request
from edgellm.engine.supervisor import LocalModel
from edgellm.errors import EdgeError, InsufficientMemory, RequestTimeout, Unavailable
from edgellm.placement.machine import Memory
from edgellm.units import size

logger = logging.getLogger(__name__)

PRELOADED_S = 30.0  # a model loaded in advance waits at least so long for its first request


class ModelPool:
    """Several local models within the machine's memory. To be used from one event loop."""

    def __init__(
        self, make_model: Callable[[Load], LocalModel], settings: Settings, memory: Callable[[], Memory]
    ) -> None:
        """`memory` tells what the machine has now; `make_model` makes a model that has not started loading."""
        self._make_model = make_model
        self._settings = settings
        self._memory = memory
        self._entries: dict[str, Entry] = {}
        self._admission = asyncio.Lock()
        self._freed = asyncio.Event()  # a model became idle or left; one waiter at most: who holds the lock
        self._closed = False

    # -- using models ------------------------------------------------------------------------------

    async def generate(self, wanted: Wanted, request: Request) -> AsyncGenerator[Event, None]:
        """Stream an answer of that model, loaded if need be. The request's time limit covers making room, too."""
        began = time.monotonic()
        try:
            async with asyncio.timeout(request.timeout_s):
                entry = await self._acquire(wanted)
        except TimeoutError:
            late = RequestTimeout(f"the request's time limit passed before there was room for {wanted.name}")
            yield Failed(late.info)
            return
        except EdgeError as error:
            yield Failed(error.info)
            return
        try:
            self._keep(entry, request.keep_alive_s)
            if request.timeout_s is not None:
                left = request.timeout_s - (time.monotonic() - began)
                request = msgspec.structs.replace(request, timeout_s=max(0.0, left))
            async with aclosing(entry.model.generate(request)) as events:
                async for event in events:
                    yield event
        finally:
            self._release(entry)

    @asynccontextmanager
    async def lease(self, wanted: Wanted, keep_alive_s: float | None = None) -> AsyncIterator[LocalModel]:
        """The model, kept from being unloaded inside the block. It loads with its first request.

        Raises InsufficientMemory, Unavailable (too many models, shutting down), or what planning raises.
        """
        entry = await self._acquire(wanted)
        try:
            self._keep(entry, keep_alive_s)
            yield entry.model
        finally:
            self._release(entry)

    async def preload(self, wanted: Wanted) -> None:
        """Start to load a model for requests to come; returns once its worker process runs. Raises as `lease` does."""
        keep_s = self._settings.keep_alive_s
        # Those requests need time to come, even where models are to leave right after their last answer.
        async with self.lease(wanted, keep_s if keep_s < 0 else max(keep_s, PRELOADED_S)) as model:
            await model.preload()

    @property
    def busy(self) -> bool:
        """Whether any model has a request."""
        return any(entry.leases for entry in self._entries.values())

    def loaded(self) -> list[LoadedModel]:
        """Every model in memory or on its way, and those that failed; least recently used first."""
        entries = sorted(self._entries.values(), key=lambda entry: entry.last_used)
        return [describe(entry) for entry in entries if entry.model.state != "stopped"]

    async def stop(self, name: str, grace_s: float | None = None) -> bool:
        """Unload a model; running answers get `grace_s` seconds (None: the setting). False: it is not loaded."""
        entry = self._entries.get(name)
        if entry is None:
            return False
        await asyncio.shield(self._unload(entry, self._settings.shutdown_grace_s if grace_s is None else grace_s))
        return True

    async def aclose(self, grace_s: float | None = None) -> None:
        """Refuse new requests, let running ones finish for `grace_s` seconds (None: the setting), unload everything."""
        self._closed = True
        self._freed.set()
        grace = self._settings.shutdown_grace_s if grace_s is None else grace_s
        async with self._admission:  # what is being admitted right now is in the table after this, or refused
            stops = [self._unload(entry, grace) for entry in self._entries.values()]
        if stops:
            await asyncio.wait(stops)

    # -- leases ------------------------------------------------------------------------------------

    async def _acquire(self, wanted: Wanted) -> Entry:
        """The entry with one more lease on it."""
        while True:
            if self._closed:
                raise Unavailable("the daemon is shutting down", hint="send the request again in a moment")
            entry = self._entries.get(wanted.name)
            if entry is None:
                entry = await self._admit(wanted)
            elif entry.unloading is not None:
                await asyncio.shield(entry.unloading)
                continue
            elif entry.yielding is not None:
                await entry.yielding.wait()
                continue
            elif entry.dead or not entry.serves(wanted):
                await self._retire(entry)
                continue
            if entry is not None:
                self._hold(entry)
                return entry

    def _hold(self, entry: Entry) -> None:
        entry.leases += 1
        entry.used()
        entry.idle.clear()
        self._disarm(entry)

    def _keep(self, entry: Entry, keep_alive_s: float | None) -> None:
        """The latest request decides."""
        entry.keep_alive_s = self._settings.keep_alive_s if keep_alive_s is None else keep_alive_s

    def _release(self, entry: Entry) -> None:
        entry.leases -= 1
        entry.used()
        if entry.leases:
            return
        entry.idle.set()
        self._freed.set()
        if entry.unloading is not None:
            return
        if entry.model.state == "stopped" or entry.retiring or entry.yielding is not None or entry.keep_alive_s == 0:
            self._unload(entry, 0.0)
        elif entry.keep_alive_s > 0:
            loop = asyncio.get_running_loop()
            entry.timer = loop.call_later(entry.keep_alive_s, lambda: self._unload(entry, 0.0))

    def _disarm(self, entry: Entry) -> None:
        if entry.timer is not None:
            entry.timer.cancel()
            entry.timer = None

    # -- in and out --------------------------------------------------------------------------------

    async def _admit(self, wanted: Wanted) -> Entry | None:
        """Make room for a model and enter it; busy ones are waited for. None: it is there meanwhile, or all is over."""
        async with self._admission:  # whoever came first gets its room first
            until = time.monotonic() + self._settings.room_wait_s
            while wanted.name not in self._entries and not self._closed:
                try:
                    plan = await self._fitted(wanted)
                except Unavailable as error:
                    if not await self._wait_for_room(wanted, until, error):
                        raise
                    continue
                if self._closed:
                    break
                entry = Entry(wanted, plan, self._make_model(plan.load))
                self._entries[wanted.name] = entry
                return entry
            return None

    async def _fitted(self, wanted: Wanted) -> ModelPlan:
        """A plan for which there is room now. Raises InsufficientMemory, or Unavailable for too many models."""
        plan = await self._plan(wanted, memory_if_idle_left(self._memory(), self._entries.values()))
        if await self._make_room(wanted.name, plan.size):
            return plan
        # Smaller, beside what is busy; or an honest refusal.
        return await self._plan(wanted, memory_now(self._memory(), self._entries.values()))

    async def _wait_for_room(self, wanted: Wanted, until: float, error: Unavailable) -> bool:
        """Wait for a busy model to become idle; False when none did in time, or when that would not help.

        The least recently used of them takes no new requests meanwhile: two models that are asked all the time take
        turns, and none keeps the other out.
        """
        busy = [entry for entry in self._entries.values() if entry.leases and entry.unloading is None]
        left = until - time.monotonic()
        if not busy or left <= 0:
            return False
        if isinstance(error, InsufficientMemory):
            try:
                await asyncio.to_thread(wanted.plan, memory_if_all_left(self._memory(), self._entries.values()))
            except InsufficientMemory:
                return False
        victim = min(busy, key=lambda entry: entry.last_used)
        victim.yielding = over = asyncio.Event()
        logger.info("%s waits for %s to become idle", wanted.name, victim.name)
        self._freed.clear()
        try:
            return not all(entry.leases for entry in busy) or await within(left, self._freed)
        finally:
            victim.yielding = None
            over.set()

    async def _plan(self, wanted: Wanted, memory: Memory) -> ModelPlan:
        try:
            return await asyncio.to_thread(wanted.plan, memory)
        except InsufficientMemory as error:
            held = [entry for entry in self._entries.values() if entry.reserved and entry.leases]
            if not held:
                raise
            names = ", ".join(f"{entry.name} ({size(entry.reserved)})" for entry in held)
            raise InsufficientMemory(
                f"{error.message}; loaded and busy: {names}",
                hint="wait for their answers, or unload one: `edgellm stop NAME`",
            ) from error

    async def _make_room(self, name: str, need: int) -> bool:
        """Unload idle models until `need` bytes are free. False: all of them are gone and it still does not fit."""
        while True:
            full = self._full()
            memory = memory_now(self._memory(), self._entries.values())
            if not full and need <= memory.available - int(self._settings.memory_reserve * memory.total):
                return True
            victim = self._victim()
            if victim is None:
                if full:
                    raise self._too_many(name)
                return False
            logger.info("unloading %s to make room for %s", victim.name, name)
            await asyncio.shield(self._unload(victim, 0.0))

    def _victim(self) -> Entry | None:
        """What goes next: whatever is on its way out already, else the least recently used idle model."""
        held = [entry for entry in self._entries.values() if entry.reserved]
        leaving = [entry for entry in held if entry.unloading is not None]
        idle = sorted((entry for entry in held if not entry.leases), key=lambda entry: entry.last_used)
        return next(iter(leaving or idle), None)

    async def _retire(self, entry: Entry) -> None:
        """Get rid of an entry that cannot serve; answers it still makes are waited for."""
        entry.retiring = True
        if entry.leases and not entry.dead:
            await entry.idle.wait()
        elif entry.unloading is None:
            await asyncio.shield(self._unload(entry, 0.0))

    def _unload(self, entry: Entry, grace_s: float) -> asyncio.Task[None]:
        """Start unloading; a second call gets the same task."""
        if entry.unloading is None:
            self._disarm(entry)
            entry.unloading = asyncio.create_task(self._stop_model(entry, grace_s), name=f"unload {entry.name}")
        return entry.unloading

    async def _stop_model(self, entry: Entry, grace_s: float) -> None:
        try:
            await entry.model.stop(grace_s)
        finally:
            if self._entries.get(entry.name) is entry:
                del self._entries[entry.name]
            self._freed.set()

    def _full(self) -> bool:
        most = self._settings.max_models
        return most > 0 and sum(1 for entry in self._entries.values() if entry.reserved) >= most

    def _too_many(self, name: str) -> Unavailable:
        names = ", ".join(entry.name for entry in self._entries.values() if entry.reserved)
        return Unavailable(
            f"{name} cannot be loaded: max_models allows {self._settings.max_models}, and busy are {names}",
            hint="wait for their answers, or raise max_models",
            retry_after=5.0,
        )
