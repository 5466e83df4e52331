"""LocalModel: loads once, ends every request exactly once, restarts what dies, leaves nothing behind."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import aclosing, asynccontextmanager
from itertools import groupby
from pathlib import Path
from typing import Any

import msgspec
import psutil
import pytest

from edgellm import platform
from edgellm.contracts.engine import Placement
from edgellm.contracts.events import ChoiceDone, Event, Failed, Finished, Progress, Started, TextDelta
from edgellm.contracts.request import GenerateRequest, Text
from edgellm.engine.limits import Limits
from edgellm.engine.patience import Restarts, Supervision
from edgellm.engine.process import WorkerProcess
from edgellm.engine.protocol import FRAME_LIMIT, Generate, Load
from edgellm.engine.supervisor import LocalModel
from edgellm.errors import ErrorInfo

FAKE = Path(__file__).parent.parent / "fake_worker.py"
PLACEMENT = Placement(context=512, capacity=1024, max_sequences=4, batch_tokens=64, threads=1, threads_batch=1)
QUICK = Supervision(
    heartbeat_timeout_s=10.0,  # these three are what a busy machine may take, and no test waits for them
    hello_timeout_s=20.0,
    load_stall_s=20.0,
    step_floor_s=5.0,
    backoff_s=0.05,
    deaths=3,
    cooldown_s=0.3,
    polite_s=1.0,
    grace_s=30.0,
    unread_bytes=64 * 1024,
)
HASTY = msgspec.structs.replace(QUICK, heartbeat_timeout_s=1.0)


def fake(**options: object) -> list[str]:
    return [sys.executable, "-P", str(FAKE), json.dumps(options)]


def descriptors() -> int:
    process = psutil.Process()
    return int(process.num_fds() if os.name == "posix" else process.num_handles())


@asynccontextmanager
async def model(
    supervision: Supervision = QUICK, log: Path | None = None, **options: object
) -> AsyncIterator[LocalModel]:
    """A model on a fake worker; afterwards stopped, and nothing of it left."""
    tasks, opened, children = asyncio.all_tasks(), descriptors(), psutil.Process().children()
    load = Load("fake", "/nowhere.gguf", PLACEMENT, "tiny:latest")
    it = LocalModel(load, supervision=supervision, log_path=log, argv=fake(**options))
    try:
        yield it
    finally:
        await it.stop(0.0)
        assert it.state == "stopped"
        assert it.pid is None
        assert set(psutil.Process().children()) <= set(children)
        assert asyncio.all_tasks() <= tasks
        assert descriptors() <= opened


def run(test: Callable[[], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(test())


def ask(text: str, timeout_s: float | None = None, number: str = "r") -> GenerateRequest:
    return GenerateRequest(id=number, model="tiny", prompt=Text(text), timeout_s=timeout_s)


async def answer(it: LocalModel, text: str, timeout_s: float | None = None) -> list[Event]:
    """All events; checks that the last one, and no other, is an end."""
    events = [event async for event in it.generate(ask(text, timeout_s))]
    assert [isinstance(event, Finished | Failed) for event in events] == [False] * (len(events) - 1) + [True]
    return events


def text_of(events: list[Event]) -> str:
    return "".join(event.text for event in events if isinstance(event, TextDelta))


def error_of(events: list[Event]) -> ErrorInfo:
    assert isinstance(events[-1], Failed), events
    return events[-1].error


async def until(condition: Callable[[], bool], seconds: float = 30.0) -> None:
    async with asyncio.timeout(seconds):
        while not condition():
            await asyncio.sleep(0.005)


def starts(path: Path) -> list[float]:
    return [float(line.split()[1]) for line in path.read_text().splitlines()]


# -- loading -----------------------------------------------------------------------------------------


def test_the_first_requests_load_once_and_hear_of_it(tmp_path: Path) -> None:
    async def test() -> None:
        async with model(starts=str(tmp_path / "starts"), load_s=0.2) as it:
            assert it.status().state == "stopped"
            pending = [asyncio.create_task(answer(it, f"echo a{n} b")) for n in range(8)]
            await until(lambda: it.state == "loading" and it.pid is not None)
            assert it.status().waiting == 8
            answers = await asyncio.gather(*pending)
            assert [text_of(events) for events in answers] == [f"a{n} b " for n in range(8)]
            assert len(starts(tmp_path / "starts")) == 1
            for events in answers:
                kinds = [type(event) for event in events if not isinstance(event, Progress)]
                # Text that a reader has not fetched yet is joined, so a busy machine sees one piece.
                assert [kind for kind, _ in groupby(kinds)] == [Started, TextDelta, ChoiceDone, Finished]
                done = [event.done for event in events if isinstance(event, Progress)]
                assert done == sorted(done)
                assert done[-1] >= 0.5
            assert it.state == "ready"
            assert it.pid is not None
            if os.name == "posix":
                assert os.getsid(it.pid) != os.getsid(0)  # Ctrl+C at the daemon's terminal does not reach it
            assert it.info is not None
            assert it.info.context == 512
            assert text_of(await answer(it, "echo again")) == "again "
            assert len(starts(tmp_path / "starts")) == 1

    run(test)


def test_a_refused_file_fails_every_waiter_and_is_not_tried_in_a_loop(tmp_path: Path) -> None:
    async def test() -> None:
        async with model(starts=str(tmp_path / "starts"), load="error") as it:
            answers = await asyncio.gather(*(answer(it, "echo x") for _ in range(3)))
            for events in answers:
                assert error_of(events) == ErrorInfo("load_failed", "tiny:latest: no such tensor", "pull it again")
            assert it.status().state == "failed"
            assert it.status().detail == "tiny:latest: no such tensor"
            assert len(starts(tmp_path / "starts")) == 1
            # Asked for again, here even before the old process is quite gone: tried again.
            assert error_of(await answer(it, "echo x")).code == "load_failed"
            await asyncio.sleep(0.2)
            assert len(starts(tmp_path / "starts")) == 2

    run(test)


@pytest.mark.parametrize("hello", ["version", "protocol"])
def test_another_version_is_refused_clearly(hello: str) -> None:
    async def test() -> None:
        async with model(hello=hello) as it:
            error = error_of(await answer(it, "echo x"))
            assert error.code == "load_failed"
            assert "99" in error.message
            assert "stop the daemon" in (error.hint or "")

    run(test)


def test_what_is_no_worker_is_given_up() -> None:
    async def test() -> None:
        async with model(hello="garbage", supervision=Supervision(deaths=1)) as it:
            error = error_of(await answer(it, "echo x"))
            assert error.code == "worker_died"
            assert "unreadable" in error.message

    run(test)


def test_a_command_that_cannot_start() -> None:
    async def test() -> None:
        load = Load("fake", "/nowhere.gguf", PLACEMENT, "tiny:latest")
        it = LocalModel(load, argv=["/no/such/python"])
        assert error_of(await answer(it, "echo x")).code == "load_failed"
        assert it.state == "failed"
        await it.stop()

    run(test)


# -- death -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["load", "die-prefill", "die-decode", "garbage"])
def test_case_16_death_fails_its_requests_at_once_and_the_next_is_served(
    how: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def test() -> None:
        options: dict[str, Any] = {"load": "die", "bad_starts": 1} if how == "load" else {}
        async with model(starts=str(tmp_path / "starts"), **options) as it:
            if how != "load":
                await answer(it, "echo warm")
            bystander = asyncio.create_task(answer(it, "slow 100000"))
            await asyncio.sleep(0.02)
            events = await answer(it, how)
            assert text_of(events) == ("one two " if how in ("die-decode", "garbage") else "")
            for error in (error_of(events), error_of(await bystander)):
                assert error.code == "worker_died"
                assert error.retriable
                assert "tiny:latest" in error.message
                if how != "garbage":
                    assert "SIGKILL" in error.message
                assert "edgellm logs" in (error.hint or "") or how == "garbage"
                assert "GGML_ASSERT" not in error.message  # it may quote anything: for the log alone
            assert ("GGML_ASSERT(false) failed" in caplog.text) == (how == "load")
            assert it.status().state == "restarting"
            assert it.status().detail == error.message
            assert text_of(await answer(it, "echo better")) == "better "
            assert it.status().state == "ready"
            assert it.status().detail is None
            assert len(starts(tmp_path / "starts")) == 2

    run(test)


HELD_OPEN = """
import os, subprocess, sys
child = subprocess.Popen(["sleep", "60"], stderr=subprocess.DEVNULL)
print("left behind", child.pid, file=sys.stderr, flush=True)
os._exit(3)
"""


@pytest.mark.skipif(os.name != "posix", reason="pipes are inherited by default on POSIX only")
def test_a_pipe_held_open_by_another_does_not_hide_a_death() -> None:
    async def test() -> None:
        process = WorkerProcess("tiny:latest", lambda message: None, lambda: None)
        await process.start([sys.executable, "-c", HELD_OPEN])
        try:
            async with asyncio.timeout(30.0):
                error = await process.ended
            assert "died (exit code 3)" in error.message
            os.kill(int(process.log.last_line.removeprefix("left behind ")), signal.SIGKILL)
        finally:
            await process.close()

    run(test)


def test_a_closed_pipe_is_an_end_though_the_process_lives() -> None:
    async def test() -> None:
        process = WorkerProcess("tiny:latest", lambda message: None, lambda: None)
        await process.start([sys.executable, "-c", "import os, time; os.close(1); time.sleep(60)"])
        try:
            async with asyncio.timeout(30.0):
                assert "closed its pipe" in (await process.ended).message
        finally:
            await process.close()
        assert process.pid is not None
        assert not platform.pid_alive(process.pid)

    run(test)


@pytest.mark.parametrize("how", ["load", "stop-prefill", "stop-decode"])
def test_case_16_a_hang_is_noticed_by_silence(how: str, tmp_path: Path) -> None:
    async def test() -> None:
        options: dict[str, Any] = {"load": "stop", "bad_starts": 1} if how == "load" else {}
        async with model(HASTY, starts=str(tmp_path / "starts"), **options) as it:
            if how != "load":
                await answer(it, "echo warm")
            asked = asyncio.create_task(answer(it, how))
            await until(lambda: it.pid is not None and platform.pid_suspended(it.pid))
            began = time.monotonic()
            error = error_of(await asked)
            assert time.monotonic() - began > 0.5
            assert error.code == "worker_died"
            assert error.retriable
            assert "no sign of life for 1 s" in error.message
            assert text_of(await answer(it, "echo better")) == "better "

    run(test)


def test_a_worker_that_never_says_hello() -> None:
    async def test() -> None:
        # Before its first word it does not load either: that is not what it is killed for.
        patience = Supervision(heartbeat_timeout_s=1.0, hello_timeout_s=0.3, load_stall_s=0.1, deaths=1)
        async with model(patience, hello="none") as it:
            assert "no sign of life for 0.3 s" in error_of(await answer(it, "echo x")).message

    run(test)


def test_an_engine_that_is_long_in_coming_from_disk_is_waited_for() -> None:
    async def test() -> None:
        patience = Supervision(heartbeat_timeout_s=0.5, hello_timeout_s=60.0, deaths=1)
        async with model(patience, import_s=1.5) as it:
            assert text_of(await answer(it, "echo here")) == "here "

    run(test)


@pytest.mark.skipif(os.name != "posix", reason="SIGSTOP")
@pytest.mark.parametrize("options", [{"hello": "none"}, {"import_s": 1000.0}])
def test_a_worker_that_is_stopped_before_it_loads_is_not_waited_for_as_for_a_slow_one(options: dict[str, Any]) -> None:
    async def test() -> None:
        patience = Supervision(heartbeat_timeout_s=0.6, hello_timeout_s=60.0, deaths=1)
        async with model(patience, **options) as it:
            waiting = asyncio.create_task(answer(it, "echo x"))
            await until(lambda: it.pid is not None)
            assert it.pid is not None
            await asyncio.sleep(0.8)  # silent, and not blamed for it
            assert not waiting.done()
            os.kill(it.pid, signal.SIGSTOP)
            began = time.monotonic()
            assert "was stopped before it began to load" in error_of(await waiting).message
            assert 0.4 < time.monotonic() - began < 50.0  # and not by its hello, after a minute

    run(test)


def test_requests_that_wait_for_the_load_are_bounded_and_those_that_left_count_no_more() -> None:
    async def test() -> None:
        load = Load("fake", "/nowhere.gguf", PLACEMENT, "tiny:latest", Limits(queue_requests=3))
        it = LocalModel(load, supervision=QUICK, argv=fake(load_s=0.8))
        waiting = [asyncio.create_task(answer(it, f"echo {number}")) for number in range(3)]
        await until(lambda: it._requests.unsent == 3)
        error = error_of(await answer(it, "echo late"))
        assert (error.code, error.retriable) == ("unavailable", True)
        assert "is being loaded, and 3 requests wait already" in error.message
        assert (error.retry_after or 0) >= 1
        gone = waiting.pop()
        gone.cancel()
        await asyncio.wait([gone])
        assert it._requests.unsent == 2
        answers = await asyncio.gather(*waiting, answer(it, "echo 2"))
        assert [text_of(events) for events in answers] == ["0 ", "1 ", "2 "]
        assert not it._requests.unsent
        await it.stop(0.0)

    run(test)


def test_a_load_that_only_beats_is_noticed(tmp_path: Path) -> None:
    async def test() -> None:
        strict = msgspec.structs.replace(QUICK, load_stall_s=2.0)
        async with model(strict, load="stall", starts=str(tmp_path / "starts"), bad_starts=1) as it:
            asked = asyncio.create_task(answer(it, "echo x"))
            await until(lambda: it.heartbeat is not None)
            assert "no progress in loading" in error_of(await asked).message
            assert text_of(await answer(it, "echo better")) == "better "

    run(test)


def test_a_step_far_beyond_its_prediction_is_noticed() -> None:
    async def test() -> None:
        async with model() as it:
            await answer(it, "echo warm")
            error = error_of(await answer(it, "stuck"))
            assert error.code == "worker_died"
            assert "in one step for 1000 s" in error.message
            assert text_of(await answer(it, "echo better")) == "better "

    run(test)


def test_a_daemon_held_up_itself_kills_nobody(tmp_path: Path) -> None:
    async def test() -> None:
        async with model(HASTY, starts=str(tmp_path / "starts")) as it:
            task = asyncio.create_task(answer(it, "slow 1000"))
            await until(lambda: it.status().running == 1)
            time.sleep(1.5)  # the point: the whole loop stands still, longer than the time-out
            assert isinstance((await task)[-1], Finished)
            assert len(starts(tmp_path / "starts")) == 1

    run(test)


def test_backoff_then_giving_up_then_another_chance(tmp_path: Path) -> None:
    async def test() -> None:
        path = tmp_path / "starts"
        patient = Supervision(deaths=4, backoff_s=0.1, cooldown_s=2.0)
        async with model(patient, load="die", starts=str(path), bad_starts=4) as it:
            assert error_of(await answer(it, "echo x")).code == "worker_died"
            errors = []
            while it.state != "failed":  # it tries by itself; whoever waits for an attempt shares its fate
                errors.append(error_of(await answer(it, "echo x")))
            gaps = [after - before for before, after in zip(starts(path), starts(path)[1:], strict=False)]
            assert len(gaps) == 3
            assert gaps[1] > 0.1  # the second restart waits, the third twice as long
            assert gaps[2] > 0.2
            assert "given up after 4 deaths" in errors[-1].message
            refused = error_of(await answer(it, "echo x"))
            assert refused.code == "worker_died"
            assert refused.retry_after is not None
            assert 0 < refused.retry_after <= 2.0
            assert "given up" in (it.status().detail or "")
            assert len(starts(path)) == 4
            await asyncio.sleep(2.1)
            assert len(starts(path)) == 4
            assert text_of(await answer(it, "echo better")) == "better "

    run(test)


def test_the_pauses_between_restarts() -> None:
    restarts = Restarts(Supervision(deaths=10))
    assert [restarts.died(1.0) for _ in range(10)] == [0.0, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 30.0, 30.0, None]
    restarts.answered()
    assert [restarts.died(1.0), restarts.died(1.0)] == [0.0, 0.5]
    assert restarts.died(60.0) == 0.0  # it had served for a while


def test_deaths_with_answers_between_are_no_row() -> None:
    async def test() -> None:
        async with model() as it:
            for _ in range(4):  # QUICK gives up after three in a row
                assert text_of(await answer(it, "echo fine")) == "fine "
                assert error_of(await answer(it, "die-prefill")).code == "worker_died"
            assert text_of(await answer(it, "echo fine")) == "fine "

    run(test)


@pytest.mark.skipif(sys.platform == "win32", reason="POSIX signals")
def test_who_was_killed_for_want_of_memory_is_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    counts = tmp_path / "vmstat"
    counts.write_text("nr_free_pages 5\noom_kill 2\n")
    monkeypatch.setattr(platform, "_VMSTAT", counts)

    async def test() -> None:
        async with model() as it:
            for kills, told in ((2, "died (killed by SIGKILL)"), (3, "as the system does where memory runs out")):
                task = asyncio.create_task(answer(it, "slow 100000"))
                await until(lambda: it.status().running == 1)
                counts.write_text(f"nr_free_pages 5\noom_kill {kills}\n")
                assert it.pid is not None
                os.kill(it.pid, signal.SIGKILL)
                error = error_of(await task)
                assert error.retriable
                assert told in error.message
                assert it.status().detail == error.message  # until it is loaded again

    run(test)


def test_killed_again_and_again_from_outside(tmp_path: Path) -> None:
    async def test() -> None:
        async with model(load_s=0.3) as it:
            for state in ("loading", "ready"):
                task = asyncio.create_task(answer(it, "slow 100000"))
                await until(lambda state=state: it.state == state and it.pid is not None)  # type: ignore[misc]
                await asyncio.sleep(0.1)
                assert it.pid is not None
                os.kill(it.pid, signal.SIGKILL)
                error = error_of(await task)
                assert error.code == "worker_died"
                assert "no sign of life" not in error.message
            assert text_of(await answer(it, "echo better")) == "better "

    run(test)


# -- requests ----------------------------------------------------------------------------------------


def test_closing_cancels_in_the_worker() -> None:
    async def test() -> None:
        async with model() as it:
            for text, take in (("slow 100000", 3), ("hang", 0)):
                async with aclosing(it.generate(ask(text))) as events:
                    if take:
                        async for event in events:
                            if isinstance(event, TextDelta):
                                break
                    else:
                        task = asyncio.ensure_future(anext(events))
                        await until(lambda: it.heartbeat is not None and it.heartbeat.running == 1)
                        task.cancel()
                        await asyncio.wait([task])
                assert it.busy == 0
                await until(lambda: it.heartbeat is not None and it.heartbeat.running == 0)
                assert it.status().running == 0

    run(test)


def test_a_reused_id_gets_only_its_own_events() -> None:
    async def test() -> None:
        async with model() as it:
            for _ in range(20):
                async with aclosing(it.generate(ask("slow 1000", number="same"))) as events:
                    async for event in events:
                        if isinstance(event, TextDelta):
                            break
                found = [event async for event in it.generate(ask("echo mine", number="same"))]
                assert text_of(found) == "mine "
            both = await asyncio.gather(answer(it, "echo a"), answer(it, "echo b"))
            assert [text_of(events) for events in both] == ["a ", "b "]

    run(test)


def test_time_limits_hold_in_every_phase() -> None:
    async def test() -> None:
        async with model(load_s=0.3) as it:
            assert error_of(await answer(it, "echo late", timeout_s=0.1)).code == "timeout"  # while loading
            assert text_of(await answer(it, "echo in time", timeout_s=60.0)) == "in time "
            events = await answer(it, "slow 100000", timeout_s=1.0)
            assert error_of(events).code == "timeout"
            assert text_of(events)
            assert error_of(await answer(it, "hang", timeout_s=0.1)).code == "timeout"
            await until(lambda: it.heartbeat is not None and it.heartbeat.running == 0)

    run(test)


def test_an_engine_s_own_failure_is_passed_on() -> None:
    async def test() -> None:
        async with model() as it:
            assert error_of(await answer(it, "fail")).code == "generation_failed"
            assert it.state == "ready"

    run(test)


def test_case_20_a_slow_reader_is_ended_and_the_others_keep_pace() -> None:
    async def test() -> None:
        async with model() as it:
            await answer(it, "echo warm")
            async with aclosing(it.generate(ask("flood 100000"))) as slow:
                assert isinstance(await anext(slow), Started)
                assert isinstance((await answer(it, "slow 100"))[-1], Finished)
                await until(lambda: it.heartbeat is not None and it.heartbeat.running == 0)
                rest = [event async for event in slow]
                assert error_of(rest).code == "timeout"
                assert "65,536 bytes" in error_of(rest).message
                assert "read the stream as it comes" in (error_of(rest).hint or "")
                assert text_of(rest) == ""  # what waited is forgotten, not kept for whoever may never come

    run(test)


def test_large_prompts_pass_and_too_large_ones_are_refused() -> None:
    async def test() -> None:
        async with model() as it:
            sizes = [9_000_000, 10, 8_000_000]
            await answer(it, "echo warm")
            pending = [asyncio.create_task(answer(it, "count " + "x" * size)) for size in sizes]
            await asyncio.sleep(0)
            assert it._requests.unsent == 2  # the pipe is full: they wait here, where a cancel still costs nothing
            answers = await asyncio.gather(*pending)
            assert [text_of(events).strip() for events in answers] == [str(size) for size in sizes]
            error = error_of(await answer(it, "count " + "x" * FRAME_LIMIT))
            assert error.code == "invalid_request"
            assert "too large" in error.message
            assert it.state == "ready"

    run(test)


def test_an_end_that_was_asked_for_is_no_death_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    async def test() -> None:
        script = "import sys; print('a warning of some library', file=sys.stderr, flush=True); sys.stdin.read(1)"
        process = WorkerProcess("tiny:latest", lambda message: None, lambda: None)
        await process.start([sys.executable, "-c", script])
        await until(lambda: bool(process.log.last_line))
        await process.close(polite_s=30.0)
        assert "died (exit code 0)" in process.ended.result().message

    run(test)
    assert "last words" not in caplog.text


def test_a_full_pipe_says_so_and_says_when_there_is_room() -> None:
    async def test() -> None:
        script = "import sys, time; time.sleep(0.1); sys.stdin.buffer.read(10**6); time.sleep(100)"
        room = asyncio.Event()
        process = WorkerProcess("tiny:latest", lambda message: None, room.set)
        await process.start([sys.executable, "-c", script])
        try:
            assert process.writable
            process.post(Generate(ask("x" * 1_000_000)))
            assert not process.writable
            async with asyncio.timeout(30.0):
                await room.wait()
            assert process.writable
        finally:
            await process.close()
        assert process.pid is not None
        assert not platform.pid_alive(process.pid)

    run(test)


# -- stopping ----------------------------------------------------------------------------------------


def test_stop_lets_answers_finish_and_refuses_new_ones() -> None:
    async def test() -> None:
        async with model() as it:
            task = asyncio.create_task(answer(it, "slow 1000"))
            await until(lambda: it.status().running == 1)
            stopping = asyncio.create_task(it.stop())
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            assert it.status().state == "draining"
            refused = error_of(await answer(it, "echo x"))
            assert refused.code == "unavailable"
            assert refused.retriable
            await stopping
            assert isinstance((await task)[-1], Finished)
            assert it.state == "stopped"
            assert text_of(await answer(it, "echo again")) == "again "

    run(test)


def test_stop_ends_what_outlasts_the_grace() -> None:
    async def test() -> None:
        async with model(load_s=0.2) as it:
            loading = asyncio.create_task(answer(it, "echo x"))
            await until(lambda: it.state == "loading")
            await it.stop(0.0)
            assert error_of(await loading).code == "unavailable"
            task = asyncio.create_task(answer(it, "slow 100000"))
            await until(lambda: it.status().running == 1)
            began = time.monotonic()
            await asyncio.gather(it.stop(0.2), it.stop(0.2))  # the answer would take hours
            assert time.monotonic() - began > 0.1
            assert "before the answer was complete" in error_of(await task).message

    run(test)


def test_a_worker_that_will_not_leave_is_killed() -> None:
    async def test() -> None:
        async with model(deaf=True, supervision=Supervision(polite_s=0.2)) as it:
            await answer(it, "echo x")
            pid = it.pid
            assert pid is not None
            await it.stop()
            assert not platform.pid_alive(pid)

    run(test)


def test_native_prints_go_to_the_log_and_not_between_frames(tmp_path: Path) -> None:
    async def test() -> None:
        log = tmp_path / "logs" / "tiny.log"
        async with model(say="llama_model_loader: loaded", log=log) as it:
            assert text_of(await answer(it, "echo x")) == "x "
            await until(lambda: "llama_model_loader: loaded" in log.read_text())
            if os.name == "posix":
                assert log.stat().st_mode & 0o777 == 0o600
        log.write_bytes(b"x" * 5_000_000)  # a long one is set aside at the next start
        async with model(say="second", log=log) as it:
            await answer(it, "echo x")
        assert log.stat().st_size < 100_000
        assert log.with_name("tiny.log.old").stat().st_size == 5_000_000

    run(test)


# -- nothing left behind -----------------------------------------------------------------------------


def test_case_23_300_requests_with_cancels_and_kills_leave_nothing() -> None:
    async def one(it: LocalModel, draw: random.Random) -> str:
        verb = draw.choice(["echo a b c", "slow 30", "slow 60", "flood 20"])
        give_up_after = draw.choice([None, None, 0, 3])
        await asyncio.sleep(draw.random() * 1.5)
        seen = 0
        async with aclosing(it.generate(ask(verb, timeout_s=60.0))) as events:
            async for event in events:
                seen += 1
                if isinstance(event, Failed):
                    return event.error.code
                if isinstance(event, Finished):
                    return "finished"
                if give_up_after is not None and seen > give_up_after:
                    return "cancelled"
        raise AssertionError("ended without an end")

    async def test() -> None:
        patient = Supervision(deaths=100, backoff_s=0.01, backoff_limit_s=0.05)
        async with model(patient) as it:
            await answer(it, "echo warm")  # on a busy machine a start takes longer than all that follows
            pending = [asyncio.create_task(one(it, random.Random(n))) for n in range(300)]

            def ended() -> list[str]:
                return [task.result() for task in pending if task.done()]

            killed = None
            for many in (20, 60, 100, 140, 180, 220, 260):  # the worker is killed when so many have ended
                await until(lambda many=many: len(ended()) >= many and "finished" in ended())  # type: ignore[misc]
                if it.pid is not None:
                    killed = it.pid
                    with contextlib.suppress(ProcessLookupError):  # reaped, and not buried yet
                        os.kill(killed, signal.SIGKILL)
            outcomes = await asyncio.gather(*pending)
            assert set(outcomes) == {"finished", "cancelled", "worker_died"}
            assert it.busy == 0
            await until(lambda: it.pid != killed)  # a death that is not noticed yet would be the next one's
            assert text_of(await answer(it, "echo fine")) == "fine "
            await until(lambda: it.heartbeat is not None and it.heartbeat.running == 0)

    run(test)


PARENT = """
import asyncio, sys
sys.path.insert(0, {folder!r})
from test_supervisor import LocalModel, Load, PLACEMENT, ask, fake

async def main():
    it = LocalModel(Load("fake", "/nowhere.gguf", PLACEMENT, "tiny:latest"), argv=fake(**{options!r}))
    async for event in it.generate(ask("slow 100000")):
        print(it.pid, flush=True)

asyncio.run(main())
"""


@pytest.mark.parametrize(
    "options",
    [
        {"pdeathsig": False},  # end of file alone
        pytest.param({"deaf": True}, marks=pytest.mark.skipif(sys.platform != "linux", reason="Linux has prctl")),
    ],
)
def test_a_killed_parent_takes_the_worker_along(options: dict[str, object]) -> None:
    script = PARENT.format(folder=str(Path(__file__).parent), options=options)
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        words = [parent.stdout.readline().strip() for _ in range(8)]
        pid = int(words[-1])
        assert platform.pid_alive(pid)
        parent.kill()
        parent.stdout.read()
    deadline = time.monotonic() + 60.0
    while platform.pid_alive(pid) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not platform.pid_alive(pid)
