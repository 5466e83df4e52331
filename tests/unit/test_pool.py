"""ModelPool: memory, least recently used, keep-alive, no thrash."""

from __future__ import annotations

import asyncio
import json
import random
import sys
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import aclosing, asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import psutil
import pytest

from edgellm.config import Settings
from edgellm.contracts.engine import Placement
from edgellm.contracts.events import Event, Failed, Finished, TextDelta
from edgellm.contracts.request import GenerateRequest, Text
from edgellm.contracts.status import LoadedModel
from edgellm.engine.admission import ModelPlan, Wanted
from edgellm.engine.patience import Supervision
from edgellm.engine.pool import ModelPool
from edgellm.engine.protocol import Load
from edgellm.engine.supervisor import LocalModel
from edgellm.errors import BadModelFile, ErrorInfo, InsufficientMemory, InvalidName
from edgellm.placement.machine import Memory

FAKE = Path(__file__).parent.parent / "fake_worker.py"
MIB = 1024 * 1024
SETTINGS = Settings(memory_reserve=0.1, keep_alive_s=60.0, shutdown_grace_s=30.0, room_wait_s=0.0)
PATIENT = msgspec.structs.replace(SETTINGS, room_wait_s=20.0)
QUICK = Supervision(deaths=2, backoff_s=0.05, cooldown_s=60.0, polite_s=1.0)


class House:
    """A pool on a machine of 1,000 MiB, of which 100 are kept for others; and what it made."""

    def __init__(self, settings: Settings = SETTINGS, others: int = 0, mapped: bool = False, **options: object) -> None:
        self.others = others  # MiB taken by other programs
        self.mapped = mapped  # models are page cache, which the system calls available
        self.options = options
        self.plans: list[tuple[str, int]] = []  # (model, MiB available) of every planning
        self.models: list[LocalModel] = []
        self.pool = ModelPool(self.make, settings, self.memory)

    def make(self, load: Load) -> LocalModel:
        model = LocalModel(load, supervision=QUICK, argv=[sys.executable, "-P", str(FAKE), json.dumps(self.options)])
        self.models.append(model)
        return model

    def memory(self) -> Memory:
        taken = sum(one.size for one in self.pool.loaded() if one.state == "ready" and not self.mapped)
        return Memory(1000 * MIB, 1000 * MIB - self.others * MIB - taken)

    def want(self, name: str, size: int = 300, *, digest: str = "d1", context: int = 512, least: int = 0) -> Wanted:
        """A model of `size` MiB; `least`: it makes do with that much."""

        def plan(memory: Memory) -> ModelPlan:
            self.plans.append((name, memory.available // MIB))
            room = memory.available // MIB - 100
            if room < (least or size):
                raise InsufficientMemory(f"the model needs {size} MiB; {room} MiB is free for it")
            return ModelPlan(Load("fake", f"/{digest}.gguf", place(context), name), min(size, room) * MIB)

        return Wanted(name, digest, plan, context)

    def loaded(self) -> list[str]:
        return [one.name for one in self.pool.loaded()]

    def of(self, name: str) -> LoadedModel:
        return next(one for one in self.pool.loaded() if one.name == name)

    def yields(self, name: str) -> bool:
        """Whether another model waits for its place."""
        return self.pool._entries[name].yielding is not None

    async def ask(self, wanted: Wanted, text: str = "echo hi", **extra: Any) -> list[Event]:
        request = GenerateRequest(id="r", model=wanted.name, prompt=Text(text), **extra)
        events = [event async for event in self.pool.generate(wanted, request)]
        assert [isinstance(event, Finished | Failed) for event in events] == [False] * (len(events) - 1) + [True]
        return events

    async def finish(self, wanted: Wanted, text: str = "echo hi", **extra: Any) -> None:
        events = await self.ask(wanted, text, **extra)
        assert isinstance(events[-1], Finished), events

    async def fail(self, wanted: Wanted, text: str = "echo hi", **extra: Any) -> ErrorInfo:
        events = await self.ask(wanted, text, **extra)
        assert isinstance(events[-1], Failed), events
        return events[-1].error

    @asynccontextmanager
    async def busy(self, *wanted: Wanted) -> AsyncIterator[None]:
        """Each of these models has a request inside the block."""
        tasks = [asyncio.create_task(self.ask(one, "slow 100000")) for one in wanted]
        for one in wanted:
            await until(lambda one=one: one.name in self.loaded() and self.of(one.name).running == 1)  # type: ignore[misc]
        yield
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)


def place(context: int) -> Placement:
    return Placement(
        context=context, capacity=2 * context, max_sequences=4, batch_tokens=64, threads=1, threads_batch=1
    )


def run(house: House, test: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Run a test, close the pool, and see that nothing is left."""

    children = set(psutil.Process().children())

    async def whole() -> None:
        try:
            await test()
        finally:
            await house.pool.aclose(0.0)
        assert house.loaded() == []
        assert not house.pool.busy
        assert set(psutil.Process().children()) <= children
        assert asyncio.all_tasks() == {asyncio.current_task()}

    asyncio.run(whole())


async def until(condition: Callable[[], bool], seconds: float = 30.0) -> None:
    async with asyncio.timeout(seconds):
        while not condition():
            await asyncio.sleep(0.005)


# -- memory ------------------------------------------------------------------------------------------


def test_the_least_recently_used_makes_room() -> None:
    house = House()

    async def test() -> None:
        for name in ("a", "b", "c"):  # 900 MiB: all that there is
            await house.finish(house.want(name))
        await house.finish(house.want("a"))
        assert house.loaded() == ["b", "c", "a"]
        pids = {name: house.of(name).pid for name in "abc"}
        await house.finish(house.want("d"))
        assert house.loaded() == ["c", "a", "d"]
        assert pids["b"] is not None
        assert not psutil.pid_exists(pids["b"])  # really gone
        assert house.of("a").pid == pids["a"]
        await house.finish(house.want("e", 600))
        assert house.loaded() == ["d", "e"]
        await house.finish(house.want("f", 900))
        assert house.loaded() == ["f"]

    run(house, test)


def test_the_least_recently_used_is_told_by_a_clock_that_nobody_sets(monkeypatch: pytest.MonkeyPatch) -> None:
    house = House()
    set_back = iter(range(10**6, 0, -3600))
    monkeypatch.setattr(time, "time", lambda: float(next(set_back)))

    async def test() -> None:
        for name in ("a", "b", "c"):
            await house.finish(house.want(name))
        assert house.loaded() == ["a", "b", "c"]
        await house.finish(house.want("d"))
        assert house.loaded() == ["b", "c", "d"]

    run(house, test)


def test_the_busy_are_never_taken_away_and_the_refusal_says_who_they_are() -> None:
    house = House()

    async def test() -> None:
        async with house.busy(house.want("a"), house.want("b")):
            await house.finish(house.want("c"))
            error = await house.fail(house.want("d", 500))
            assert error.code == "insufficient_memory"
            assert "needs 500 MiB; 300 MiB is free" in error.message
            assert "busy: a (300 MiB), b (300 MiB)" in error.message
            assert "edgellm stop" in (error.hint or "")
            assert house.loaded() == ["a", "b", "c"]  # and c was not sacrificed for nothing
            await house.finish(house.want("e"))  # takes the place of c
            assert sorted(house.loaded()) == ["a", "b", "e"]
        await house.finish(house.want("d", 500))
        assert "d" in house.loaded()

    run(house, test)


def test_what_others_take_counts() -> None:
    house = House(others=350)

    async def test() -> None:
        await house.finish(house.want("a"))
        await house.finish(house.want("b"))
        assert house.loaded() == ["b"]
        error = await house.fail(house.want("c", 600))
        assert error.code == "insufficient_memory"
        assert "busy" not in error.message  # nothing of ours is in the way
        assert house.loaded() == ["b"]

    run(house, test)


def test_a_plan_is_made_for_the_memory_that_eviction_gives() -> None:
    house = House()

    async def test() -> None:
        await house.finish(house.want("a", 500))
        await house.finish(house.want("b", 800, least=100))  # could shrink to 300 beside the idle a; need not
        assert house.loaded() == ["b"]
        assert house.of("b").size == 800 * MIB
        async with house.busy(house.want("b", 800, least=100)):
            await house.finish(house.want("c", 500, least=50))  # the busy b stays: c makes do with the rest
            assert sorted(house.loaded()) == ["b", "c"]
            assert house.of("c").size == 100 * MIB

    run(house, test)


@pytest.mark.parametrize("others", [0, 350])
def test_two_that_load_at_once_do_not_count_on_the_same_memory(others: int) -> None:
    house = House(others=others, load_s=1.0)
    each = 600 - others // 2 - others // 4

    async def test() -> None:
        answers = await asyncio.gather(house.ask(house.want("a", each)), house.ask(house.want("b", each)))
        ends = [type(events[-1]).__name__ for events in answers]
        assert sorted(ends) == ["Failed", "Finished"]
        assert len(house.models) == 1

    run(house, test)


def test_mapped_weights_take_memory_though_the_system_calls_it_available() -> None:
    house = House(mapped=True)

    async def test() -> None:
        for name in ("a", "b", "c", "d"):
            await house.finish(house.want(name))
        assert house.loaded() == ["b", "c", "d"]

    run(house, test)


def test_max_models() -> None:
    house = House(Settings(max_models=2, room_wait_s=0.0))

    async def test() -> None:
        a, b, c = (house.want(name, 10) for name in "abc")
        await house.finish(a)
        await house.finish(b)
        await house.finish(c)
        assert house.loaded() == ["b", "c"]
        async with house.busy(b, c):
            error = await house.fail(a)
            assert error.code == "unavailable"
            assert error.retriable
            assert "max_models allows 2" in error.message

    run(house, test)


# -- waiting for busy ones ---------------------------------------------------------------------------

ONE = msgspec.structs.replace(PATIENT, max_models=1)


@pytest.mark.parametrize(("settings", "size"), [(ONE, 10), (PATIENT, 600)])
def test_a_busy_model_is_waited_for(settings: Settings, size: int) -> None:
    house = House(settings)

    async def test() -> None:
        await house.finish(house.want("a", size))
        first = asyncio.create_task(house.ask(house.want("a", size), "slow 1000"))
        await until(lambda: house.of("a").running == 1)
        await house.finish(house.want("b", size))
        assert first.done()
        assert isinstance(first.result()[-1], Finished)
        assert house.loaded() == ["b"]

    run(house, test)


def test_the_wait_is_bounded_and_afterwards_all_is_as_before() -> None:
    house = House(msgspec.structs.replace(ONE, room_wait_s=2.0))

    async def test() -> None:
        async with house.busy(house.want("a", 10)):
            began = time.monotonic()
            asked = asyncio.create_task(house.fail(house.want("b", 10)))
            await until(lambda: house.yields("a"))
            held = asyncio.create_task(house.finish(house.want("a", 10)))  # would keep a busy: it waits its turn
            first, _ = await asyncio.wait({asked, held}, return_when=asyncio.FIRST_COMPLETED)
            assert first == {asked}
            error = await asked
            assert time.monotonic() - began > 1.9
            assert (error.code, error.retriable, error.retry_after) == ("unavailable", True, 5.0)
            assert "busy are a" in error.message
            await held
            assert house.loaded() == ["a"]

    run(house, test)


def test_two_models_asked_all_the_time_take_turns() -> None:
    house = House(ONE)

    async def test() -> None:
        async def stream(name: str) -> None:
            for _ in range(4):
                await house.finish(house.want(name, 10), "slow 40")
                served.append(name)

        served: list[str] = []
        await asyncio.gather(*(stream(name) for name in "aabb"))  # two each: without turns one is never idle
        assert sorted(served) == sorted("aabb" * 4)
        assert "b" in served[:8]
        assert "a" in served[:8]

    run(house, test)


def test_what_would_not_fit_anyway_is_refused_at_once() -> None:
    house = House(PATIENT)

    async def test() -> None:
        async with house.busy(house.want("a")):
            began = time.monotonic()
            assert (await house.fail(house.want("b", 2000))).code == "insufficient_memory"
            assert time.monotonic() - began < 10.0

    run(house, test)


def test_a_request_waits_for_room_no_longer_than_its_own_limit_and_not_beyond_the_end() -> None:
    house = House(ONE)

    async def test() -> None:
        async with house.busy(house.want("a", 10)):
            assert (await house.fail(house.want("b", 10), timeout_s=0.3)).code == "timeout"
            waiting = asyncio.create_task(house.fail(house.want("b", 10)))
            await until(lambda: house.yields("a"))
            closing = asyncio.create_task(house.pool.aclose(0.0))
            assert (await waiting).code == "unavailable"
            await closing

    run(house, test)


# -- loading once, and again -------------------------------------------------------------------------


def test_concurrent_first_requests_load_and_plan_once() -> None:
    house = House(load_s=0.1)

    async def test() -> None:
        await asyncio.gather(*(house.finish(house.want("a")) for _ in range(10)))
        assert len(house.models) == 1
        assert house.plans == [("a", 1000)]

    run(house, test)


def test_no_reload_while_what_is_loaded_will_do() -> None:
    house = House()

    async def test() -> None:
        await house.finish(house.want("a", context=1024))
        pid = house.of("a").pid
        await house.finish(house.want("a", context=512))
        await house.finish(house.want("a", context=0))
        assert house.of("a").pid == pid
        await house.finish(house.want("a", context=2048))
        assert house.of("a").pid != pid
        assert house.of("a").context == 2048

    run(house, test)


def test_a_changed_file_waits_for_the_answers_of_the_old_one() -> None:
    house = House()

    async def test() -> None:
        old = asyncio.create_task(house.finish(house.want("a"), "slow 1000"))
        await until(lambda: house.loaded() == ["a"] and house.of("a").running == 1)
        late = await house.fail(house.want("a", digest="d2"), timeout_s=0.05)
        assert late.code == "timeout"
        assert not old.done()
        await house.finish(house.want("a", digest="d2"))
        await old
        assert [model.load.path for model in house.models] == ["/d1.gguf", "/d2.gguf"]

    run(house, test)


def test_who_needs_a_larger_context_is_not_kept_waiting_by_new_requests() -> None:
    house = House()

    async def test() -> None:
        order: list[str] = []

        async def ask(label: str, text: str, context: int) -> None:
            await house.finish(house.want("a", context=context), text)
            order.append(label)

        running = asyncio.create_task(ask("running", "slow 1000", 512))
        await until(lambda: house.loaded() == ["a"] and house.of("a").running == 1)
        larger = asyncio.create_task(ask("larger", "echo x", 2048))
        await asyncio.sleep(0.01)
        later = asyncio.create_task(ask("later", "echo x", 512))  # the old one would do, if it were not on its way out
        await asyncio.gather(running, larger, later)
        assert order[0] == "running"
        assert [model.load.placement.context for model in house.models] == [512, 2048]

    run(house, test)


def test_a_failed_load_is_said_and_holds_no_memory() -> None:
    house = House(load="error")

    async def test() -> None:
        for count in (1, 2):  # each request tries again
            error = await house.fail(house.want("a", 800))
            assert error.code == "load_failed"
            assert len(house.models) == count
            assert house.of("a").state == "failed"
            assert "no such tensor" in (house.of("a").detail or "")
        house.options = {}
        await house.finish(house.want("b", 800))
        assert house.of("b").state == "ready"

    run(house, test)


def test_a_crash_loop_is_refused_without_sacrificing_others() -> None:
    house = House()

    async def test() -> None:
        house.options = {"load": "die"}
        while (error := await house.fail(house.want("a", 800))).retry_after is None:
            assert error.code == "worker_died"
        house.options = {}
        await house.finish(house.want("b", 800))
        assert "given up" in (await house.fail(house.want("a", 800))).message
        assert house.of("b").state == "ready"
        assert len(house.models) == 2

    run(house, test)


def test_preloading_gets_the_worker_going() -> None:
    house = House(Settings(keep_alive_s=0.0), load_s=0.2)

    async def test() -> None:
        await house.pool.preload(house.want("a"))
        assert house.of("a").state == "loading"
        assert house.of("a").pid is not None
        assert not house.pool.busy
        await house.finish(house.want("a"))
        assert len(house.models) == 1
        await until(lambda: house.loaded() == [])  # then its keep-alive of 0 holds
        with pytest.raises(InsufficientMemory):
            await house.pool.preload(house.want("b", 2000))

    run(house, test)


@pytest.mark.parametrize("error", [BadModelFile("no.gguf: bad magic"), InvalidName("no name")])
def test_what_planning_says_is_passed_on(error: BadModelFile | InvalidName) -> None:
    house = House()

    async def test() -> None:
        def plan(memory: Memory) -> ModelPlan:
            raise error

        assert (await house.fail(Wanted("x", "d", plan))).message == error.message
        with pytest.raises(type(error)):
            async with house.pool.lease(Wanted("x", "d", plan)):
                pass

    run(house, test)


# -- keep-alive --------------------------------------------------------------------------------------


def test_idle_models_leave_when_their_time_is_up() -> None:
    house = House(Settings(keep_alive_s=0.5))

    async def test() -> None:
        began = time.time()
        await house.finish(house.want("a"))
        pid = house.of("a").pid
        first = house.of("a").expires_at
        assert first is not None
        assert began + 0.5 <= first <= time.time() + 0.5
        # Longer than that: it holds the time off meanwhile, and starts it anew.
        asked = asyncio.create_task(house.finish(house.want("a"), "slow 1000"))
        await until(lambda: house.of("a").running == 1)
        assert house.of("a").expires_at is None
        await asked
        assert time.time() > first
        assert house.of("a").pid == pid
        assert (house.of("a").expires_at or 0.0) >= first + 0.5
        await until(lambda: house.loaded() == [])
        assert pid is not None
        assert not psutil.pid_exists(pid)
        await house.finish(house.want("a"))  # and come again

    run(house, test)


def test_when_a_model_leaves_is_told_by_the_clock_as_it_is_set(monkeypatch: pytest.MonkeyPatch) -> None:
    house, really, hour = House(), time.time, 3600.0

    async def test() -> None:
        await house.finish(house.want("a"))
        first = house.of("a").expires_at
        assert first is not None
        monkeypatch.setattr(time, "time", lambda: really() + hour)
        assert (house.of("a").expires_at or 0.0) >= first + hour - 1e-3

    run(house, test)


def test_keep_alive_of_the_request() -> None:
    house = House(Settings(keep_alive_s=0.2))

    async def test() -> None:
        await house.finish(house.want("a"), keep_alive_s=-1.0)
        await house.finish(house.want("b"), keep_alive_s=0.0)
        await until(lambda: house.loaded() == ["a"])
        await asyncio.sleep(0.3)
        assert house.loaded() == ["a"]
        assert house.of("a").expires_at is None
        await house.finish(house.want("a"), keep_alive_s=0.1)
        await until(lambda: house.loaded() == [])

    run(house, test)


def test_a_request_during_unloading_loads_again() -> None:
    house = House()

    async def test() -> None:
        await house.finish(house.want("a"))
        stopping = asyncio.create_task(house.pool.stop("a"))
        while house.of("a").state != "draining":
            await asyncio.sleep(0)  # and no longer: it is soon gone
        await house.finish(house.want("a"))
        assert await stopping
        assert house.loaded() == ["a"]
        assert len(house.models) == 2

    run(house, test)


# -- asking and stopping -----------------------------------------------------------------------------


def test_ps_tells_the_truth() -> None:
    house = House(load_s=0.5)

    async def test() -> None:
        began = time.time()
        task = asyncio.create_task(house.ask(house.want("a", context=512), "slow 100000"))
        await until(lambda: house.loaded() == ["a"])
        one = house.of("a")
        assert (one.state, one.running, one.waiting, one.size) == ("loading", 0, 1, 300 * MIB)
        await until(lambda: house.of("a").kv_used > 0)
        one = house.of("a")
        assert (one.state, one.running, one.waiting) == ("ready", 1, 0)
        assert (one.context, one.capacity, one.expires_at) == (512, 1024, None)
        assert began <= one.last_used <= time.time()
        assert one.pid is not None
        assert psutil.pid_exists(one.pid)
        assert house.pool.busy
        task.cancel()
        await asyncio.wait([task])
        assert not house.pool.busy
        assert house.of("a").expires_at is not None

    run(house, test)


def test_ps_tells_the_room_that_was_found_and_not_the_one_that_was_planned() -> None:
    house = House(load_s=0.5, room=384)

    async def test() -> None:
        asking = asyncio.create_task(house.finish(house.want("a", context=512)))
        await until(lambda: house.loaded() == ["a"])
        assert (house.of("a").context, house.of("a").capacity) == (512, 1024)  # nothing better is known yet
        await asking
        assert (house.of("a").context, house.of("a").capacity) == (384, 384)
        await house.finish(house.want("a", context=512))
        assert len(house.models) == 1  # it would get no more by being loaded again

    run(house, test)


def test_stop_waits_for_the_grace_and_no_longer() -> None:
    house = House()

    async def test() -> None:
        assert not await house.pool.stop("a")
        task = asyncio.create_task(house.finish(house.want("a"), "slow 1000"))
        await until(lambda: house.loaded() == ["a"] and house.of("a").running == 1)
        assert await house.pool.stop("a")
        await task  # finished
        assert house.loaded() == []
        endless = asyncio.create_task(house.fail(house.want("a"), "slow 100000"))
        await until(lambda: house.loaded() == ["a"] and house.of("a").running == 1)
        assert await house.pool.stop("a", 0.1)
        assert (await endless).code == "unavailable"

    run(house, test)


def test_after_closing_requests_are_refused() -> None:
    house = House()

    async def test() -> None:
        running = asyncio.create_task(house.finish(house.want("a"), "slow 1000"))
        await until(lambda: house.loaded() == ["a"] and house.of("a").running == 1)
        closing = asyncio.create_task(house.pool.aclose())
        await asyncio.sleep(0)
        error = await house.fail(house.want("b"))
        assert error.code == "unavailable"
        assert error.retriable
        await asyncio.gather(running, closing)
        assert house.loaded() == []

    run(house, test)


def test_requests_of_five_models_in_the_memory_of_two() -> None:
    house = House()
    draw = random.Random(3)

    async def one() -> str:
        await asyncio.sleep(draw.random())
        wanted = house.want(draw.choice("abcde"), 450)
        stop_at = draw.choice([1, 5, 1000])
        request = GenerateRequest(id="r", model=wanted.name, prompt=Text("slow 10"), timeout_s=60.0)
        async with aclosing(house.pool.generate(wanted, request)) as events:
            count = 0
            async for event in events:
                count += isinstance(event, TextDelta)
                if isinstance(event, Failed):
                    return event.error.code
                if isinstance(event, Finished):
                    return "finished"
                if count == stop_at:
                    return "cancelled"
        raise AssertionError("ended without an end")

    async def test() -> None:
        outcomes = await asyncio.gather(*(one() for _ in range(60)))
        assert set(outcomes) == {"finished", "cancelled", "insufficient_memory"}
        assert sum(one.size for one in house.pool.loaded()) <= 900 * MIB
        await house.finish(house.want("f", 900))

    run(house, test)
