"""What dies or hangs, at every stage: a real daemon in a process of its own, a real worker, a real model."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import httpx2
import pytest
from real_daemon import ENDLESS, MODEL, Served, Watch, home_with_model, serving, wait_for

from edgellm import platform
from edgellm.contracts.events import Event, Failed, Finished, Progress, TextDelta
from edgellm.contracts.request import Text
from edgellm.paths import Paths, default_paths

HEARTBEAT_S = 6.0  # a worker beats each second; importing torch can hold that up for as long again, or longer
LONG = Text("colour " * 3000)  # some twenty seconds of prefill on one thread
SHORT = Text("Once upon a time")

pytestmark = [pytest.mark.skipif(os.name != "posix", reason="signals as POSIX has them"), pytest.mark.slow]


@pytest.fixture(scope="module")
def paths(starter: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Paths]:
    """A home of this module's own, with the model in its store."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("EDGELLM_CONTEXT", "4096")
        patch.setenv("EDGELLM_HEARTBEAT_TIMEOUT_S", f"{HEARTBEAT_S:g}")
        yield home_with_model(starter, tmp_path_factory.mktemp("home"), patch)


@pytest.fixture(scope="module")
def served(paths: Paths) -> Iterator[Served]:
    with serving(paths) as served:
        yield served


def loads(event: Event) -> bool:
    return isinstance(event, Progress) and event.stage == "load" and event.done > 0


def prefills(event: Event) -> bool:
    return isinstance(event, Progress) and event.stage == "prefill"


def decodes(event: Event) -> bool:
    return isinstance(event, TextDelta)


STAGES = [
    pytest.param(LONG, loads, id="loading"),
    pytest.param(LONG, prefills, id="prefill"),
    pytest.param(SHORT, decodes, id="decode"),
]


class Whole(threading.Thread):
    """An OpenAI client that waits for a whole answer, beside the stream that shows how far the worker is."""

    def __init__(self, served: Served, prompt: Text) -> None:
        super().__init__(daemon=True)
        self.url = served.client.info.url + "/v1/completions"
        self.body = {"model": MODEL, "prompt": prompt.text + " And", "max_tokens": 900}
        self.body["frequency_penalty"] = ENDLESS.frequency_penalty
        self.status = 0
        self.reply: dict[str, Any] = {}
        self.start()

    def run(self) -> None:
        with suppress(httpx2.HTTPError):  # a test that failed has ended the daemon
            reply = httpx2.post(self.url, json=self.body, trust_env=False, timeout=60)
            self.status, self.reply = reply.status_code, reply.json()


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP], ids=["killed", "stopped"])
@pytest.mark.parametrize(("prompt", "reached"), STAGES)
def test_case_16_a_worker_dies_or_hangs(
    prompt: Text, reached: Callable[[Event], bool], how: signal.Signals, served: Served
) -> None:
    if reached is loads and served.client.ps():
        served.client.stop(MODEL)
    restarts = served.model.restarts if served.client.ps() else 0
    events = served.generate(prompt, 900)
    first = next(events)  # the request is at the model: the other one finds it loading or loaded
    other = Whole(served, prompt)
    wait_for(lambda: served.model.running + served.model.waiting == 2, 60)
    if not reached(first):
        next(event for event in events if reached(event))
    victim = served.worker
    with Watch(served.client) as watch:
        os.kill(victim, how)
        watch.said.clear()
        *_, last = events
        wait_for(lambda: watch.restarting, 60)

    assert isinstance(last, Failed)
    assert (last.error.code, last.error.retriable) == ("worker_died", True)
    assert ("no sign of life" in last.error.message) == (how == signal.SIGSTOP)  # a death is seen at once
    other.join(60)
    assert (other.status, other.reply["error"]["code"]) == (503, "worker_died")
    wait_for(lambda: not platform.pid_alive(victim), 60)  # a stopped process does not end by itself

    *_, last = served.generate(SHORT, 2)
    assert isinstance(last, Finished)
    assert served.client.health()["status"] == "ok"
    assert (served.model.restarts, served.worker != victim) == (restarts + 1, True)


@pytest.mark.parametrize(("prompt", "reached"), STAGES)
def test_case_17_a_daemon_that_is_killed_leaves_no_worker(
    prompt: Text, reached: Callable[[Event], bool], paths: Paths, tmp_path: Path
) -> None:
    with elsewhere(paths, tmp_path) as own, serving(own) as served:
        events = served.generate(prompt, 900)
        next(event for event in events if reached(event))
        worker = served.worker
        served.process.kill()
        wait_for(lambda: not platform.pid_alive(worker), 60)
        *_, last = events
        assert isinstance(last, Failed)
        assert last.error.retriable


def test_case_17_sigterm_drains(paths: Paths, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EDGELLM_SHUTDOWN_GRACE_S", "300")  # the answer's end is waited for, however slow an engine is
    monkeypatch.setenv("EDGELLM_HEARTBEAT_TIMEOUT_S", "60")
    with elsewhere(paths, tmp_path) as own, serving(own) as served:
        assert list(served.generate(SHORT, 1))  # loaded
        worker = served.worker
        events = served.generate(SHORT, 60)
        next(event for event in events if decodes(event))
        os.kill(worker, signal.SIGSTOP)  # the answer runs, however fast an engine is
        served.process.send_signal(signal.SIGTERM)
        wait_for(lambda: served.client.health()["status"] == "draining", 60)
        (refused,) = served.generate(SHORT, 2)
        assert isinstance(refused, Failed)
        assert (refused.error.code, refused.error.retriable) == ("unavailable", True)
        os.kill(worker, signal.SIGCONT)
        *_, last = events
        assert isinstance(last, Finished)  # the answer that ran is whole
        assert served.process.wait(60) == 0
        assert not platform.pid_alive(worker)


def test_case_17_a_second_signal_cuts_off_and_leaves_no_worker(paths: Paths, tmp_path: Path) -> None:
    with elsewhere(paths, tmp_path) as own, serving(own) as served:
        events = served.generate(LONG, 60)
        next(event for event in events if prefills(event))
        worker = served.worker
        served.process.send_signal(signal.SIGINT)
        wait_for(lambda: served.client.health()["status"] == "draining", 60)
        served.process.send_signal(signal.SIGINT)
        assert served.process.wait(60) == 130
        assert not platform.pid_alive(worker)
        with suppress(StopIteration):
            *_, last = events
            assert isinstance(last, Failed)


@contextmanager
def elsewhere(paths: Paths, folder: Path) -> Iterator[Paths]:
    """A home with the same models whose daemon is another."""
    (folder / "models").symlink_to(paths.models)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("EDGELLM_HOME", str(folder))
        yield default_paths()
