"""Cases 16, 18, 20 and 23 over HTTP: real processes that die, hang or flood, under the real service and supervision."""

from __future__ import annotations

import json
import os
import random
import signal
import socket
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx2
import psutil
import pytest
from at_best import at_best
from contract.engines import tiny_model
from fake_service import quick
from process_service import MODEL, Processes, processes, until

from edgellm.config import Settings

pytestmark = pytest.mark.skipif(os.name != "posix", reason="signals as POSIX has them")


@pytest.fixture
def running(home: Path) -> Iterator[Processes]:
    with processes() as running:
        yield running


def head_of(body: dict[str, Any]) -> bytes:
    content = json.dumps(body).encode()
    head = "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    return head.encode() + b"Content-Length: %d\r\n\r\n" % len(content) + content


# -- 16: death and hang ------------------------------------------------------------------------------


@pytest.fixture
def gate(tmp_path: Path) -> Path:
    """A file without which no worker starts."""
    path = tmp_path / "gate"
    path.touch()
    return path


@pytest.mark.parametrize(("how", "silence_s"), [("die-prefill", 60.0), ("die-decode", 60.0), ("stop-decode", 1.0)])
def test_case_16_a_dying_worker_is_a_retriable_503_and_health_and_metrics_say_so(
    how: str, silence_s: float, home: Path, gate: Path
) -> None:
    with processes(silence_s=silence_s, gate=str(gate)) as running:
        assert running.ask("echo warm").json()["choices"][0]["text"] == "warm "
        gate.unlink()
        failed = running.ask(how)
        error = failed.json()["error"]
        assert (failed.status_code, error["code"]) == (503, "worker_died")
        assert failed.headers["x-should-retry"] == "true"
        assert ("no sign of life" in error["message"]) == (how == "stop-decode")  # a death is seen at once
        assert f"edgellm logs {MODEL}" in error["message"] or how == "stop-decode"
        health = running.health()
        assert health["status"] in ("degraded", "loading")
        assert health["models"][MODEL]["state"] in ("restarting", "loading")
        assert running.metric("edgellm_model_ready") == 0
        gate.touch()
        assert running.ask("echo better").status_code == 200
        assert running.health()["status"] == "ok"
        assert running.metric("edgellm_worker_restarts_total") == 1
        assert running.metric("edgellm_http_responses_total") > 4


def test_case_16_death_while_loading(home: Path, tmp_path: Path) -> None:
    with processes(load="die", bad_starts=1, starts=str(tmp_path / "starts")) as running:
        assert running.ask("echo x").json()["error"]["code"] == "worker_died"
        assert running.ask("echo x").status_code == 200


def test_case_16_a_stream_that_breaks_off_says_so_in_the_stream(running: Processes) -> None:
    response = running.ask("die-decode", stream=True)
    assert response.status_code == 200
    last = json.loads(response.text.strip().split("\n\n")[-1].removeprefix("data: "))
    assert last["error"]["code"] == "worker_died"
    assert "[DONE]" not in response.text


# -- 18: clients that vanish -------------------------------------------------------------------------


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("prompt", ["hang", "slow 100000"])
def test_case_18_a_vanished_client_frees_its_sequence_within_a_second(
    prompt: str, stream: bool, running: Processes
) -> None:
    def freed_s() -> float:
        with socket.create_connection(("127.0.0.1", running.server.port)) as connection:
            connection.sendall(head_of(running.body(prompt) | {"stream": stream}))
            # Only what has begun has something in the cache that could stay there.
            until(lambda: running.model["waiting"] > 0 if prompt == "hang" else running.metric("edgellm_kv_used") > 0)
        taken = until(lambda: running.model["running"] + running.model["waiting"] == 0)
        return taken + until(lambda: running.metric("edgellm_kv_used") == 0)

    running.ask("echo warm")
    assert at_best(freed_s, enough=1.0) < 1.0


# -- 19: while it loads ------------------------------------------------------------------------------


def test_case_19_more_than_may_wait_for_a_load_is_a_503_with_a_time_to_come_back(home: Path, gate: Path) -> None:
    gate.unlink()
    with processes(Settings(queue_requests=3), gate=str(gate)) as running, ThreadPoolExecutor(6) as pool:
        asked = [pool.submit(running.ask, f"echo {number}") for number in range(6)]
        until(lambda: sum(each.done() for each in asked) == 3, 60.0)
        gate.touch()
        answers = [each.result() for each in asked]
        assert Counter(answer.status_code for answer in answers) == {200: 3, 503: 3}
        for answer in answers:
            if answer.status_code == 503:
                assert int(answer.headers["retry-after"]) >= 1
                assert "is being loaded" in answer.json()["error"]["message"]
        assert running.health()["status"] == "ok"


# -- 20: slow readers --------------------------------------------------------------------------------


@pytest.mark.slow
def test_case_20_a_slow_reader_is_ended_and_others_keep_their_pace(home: Path) -> None:
    with processes(limits=quick(write_s=3.0)) as running:
        running.ask("echo warm")
        alone = timed(running)
        with socket.create_connection(("127.0.0.1", running.server.port)) as reader:
            reader.sendall(head_of(running.body("flood 20000") | {"stream": True}))
            until(lambda: running.model["running"] == 1)
            assert timed(running) < 3 * alone + 8.0  # not once the flood is over: that would be tens of seconds
            until(lambda: running.model["running"] == 0, 30.0)  # more than a mebibyte waits: the worker is told to stop
            assert running.health()["status"] == "ok"
        until(lambda: running.server.app.state.front.running == 0)


def timed(running: Processes) -> float:
    began = time.monotonic()
    assert running.ask("slow 100").status_code == 200
    return time.monotonic() - began


# -- 23: nothing stays behind ------------------------------------------------------------------------


class Load:
    """What clients ask, and how often requests gave way meanwhile."""

    def __init__(self, *, core: bool) -> None:
        self.core = core
        self.suspended = 0

    def prompt(self, dice: random.Random) -> tuple[str, int]:
        """A prompt, and the most tokens of its answer."""
        if not self.core:
            return dice.choice(["echo a b c", "slow 20", "slow 60", "flood 20", "hang"]), 100
        return "".join(dice.choices("abcdefgh ", k=dice.choice((5, 40, 150, 300)))), dice.randint(1, 60)


def one(running: Processes, http: httpx2.Client, load: Load, number: int) -> str:
    """One request to its end, or to where its client loses patience."""
    dice = random.Random(number)
    prompt, most = load.prompt(dice)
    leave_s = 0.1 if prompt == "hang" else dice.choice([None, None, None, 0.02, 0.1])
    body = running.body(prompt) | {"stream": dice.random() < 0.6, "priority": dice.choice((-1, 0, 10))}
    body["max_tokens"] = most
    try:
        response = http.post("/v1/completions", json=body, timeout=120 if leave_s is None else leave_s)
    except httpx2.TimeoutException:
        return "left" if leave_s is not None else "hung"
    if response.status_code == 200 and '"error"' not in response.text:
        return "answered"
    code: str = "worker_died" if "worker_died" in response.text else str(response.status_code)
    return code


def shower(running: Processes, load: Load, count: int, kill_every: int) -> Counter[str]:
    """`count` requests of 16 clients; the worker is killed after every so many."""
    found: Counter[str] = Counter()
    lock, killing = threading.Lock(), threading.Lock()
    with httpx2.Client(base_url=running.server.url, trust_env=False) as http, ThreadPoolExecutor(16) as pool:

        def run(number: int) -> None:
            outcome = one(running, http, load, number)
            with lock:
                found[outcome] += 1
                kill = sum(found.values()) % kill_every == 0
            if not kill:
                return
            with killing:  # over one connection: a second one would stay, and count as left behind
                pid = running.model["pid"]
                if pid is not None:
                    load.suspended += int(running.metric("edgellm_suspensions_total"))
                    os.kill(pid, signal.SIGKILL)

        list(pool.map(run, range(count)))
    return found


def held() -> dict[str, int]:
    """By this process, in which the server runs, and its children."""
    me = psutil.Process()
    return {"descriptors": me.num_fds(), "threads": me.num_threads(), "children": len(me.children(recursive=True))}


def leaves_nothing(running: Processes, load: Load, count: int, kill_every: int) -> None:
    shower(running, load, 60, 40)  # what grows once: pools, imports, a worker
    kv = at_rest(running)
    before, memory = held(), psutil.Process().memory_info().rss
    found = shower(running, load, count, kill_every)
    assert set(found) <= {"answered", "left", "worker_died"}, found
    assert min(found["answered"], found["left"], found["worker_died"]) > 0, found
    at_rest(running)
    until(lambda: running.metric("edgellm_kv_used") == kv)
    load.suspended += int(running.metric("edgellm_suspensions_total"))  # after a heartbeat: all of the last worker's
    deadline = time.monotonic() + 30
    while any(now > before[name] for name, now in held().items()) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert {name: max(before[name], now) for name, now in held().items()} == before
    assert psutil.Process().memory_info().rss - memory < 48 << 20
    assert running.server.app.state.front.running == 0


def at_rest(running: Processes) -> float:
    """KV in use when nothing runs and one plain question was the last."""
    until(lambda: running.ask("echo rest").status_code == 200, 60.0)
    until(lambda: running.model["running"] + running.model["waiting"] == 0, 30.0)
    time.sleep(1.2)  # a heartbeat
    return running.metric("edgellm_kv_used")


def test_case_23_120_requests_with_cancels_and_kills_leave_nothing_behind(running: Processes) -> None:
    leaves_nothing(running, Load(core=False), 120, 40)


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_case_23_2000_requests_with_cancels_and_kills_leave_nothing_behind(running: Processes) -> None:
    leaves_nothing(running, Load(core=False), 2000, 150)


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize(
    ("engine", "count", "kill_every"), [("fake", 150, 50), ("fake", 2000, 150), ("torch", 150, 50), ("torch", 600, 150)]
)
def test_case_23_requests_that_give_way_to_each_other_too(
    engine: str, count: int, kill_every: int, home: Path, tmp_path: Path
) -> None:
    """The real worker, core and scheduler, in whose KV there is no room for all who run."""
    load = Load(core=True)
    options = {"core": 0.004} if engine == "fake" else {"torch": str(tiny_model("torch-tiny-gemma3", tmp_path))}
    with processes(**options) as running:
        leaves_nothing(running, load, count, kill_every)
    assert load.suspended > count // 30
