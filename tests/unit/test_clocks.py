"""Clocks that jump: a process that was stopped with everything else, or slept; and a wall clock that is set."""

from __future__ import annotations

import io
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from edgellm.engine.embedding_worker import EmbeddingWorker
from edgellm.engine.step_age import StepAge
from edgellm.engine.worker import TextWorker
from edgellm.engine.worker_base import Pipe
from edgellm.errors import DownloadFailed
from edgellm.library.transfer.download import Download, Tuning
from edgellm.library.transfer.faults import Trouble
from edgellm.library.transfer.ranges import RangeTable
from edgellm.library.transfer.target import FileTarget

NIGHT = 30_000.0  # s


class Clock:
    """`time.monotonic`, which the test puts forward."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.slept = 0.0
        real = time.monotonic
        patch.setattr(time, "monotonic", lambda: real() + self.slept)


# -- steps -------------------------------------------------------------------------------------------


def test_a_step_is_as_old_as_the_beats_it_ran_through() -> None:
    age = StepAge(100.0)
    assert age.at(0.0, 101.0) == 0.0
    assert age.at(101.5, 102.0) == 0.5
    assert age.at(101.5, 103.0) == 1.5
    assert age.at(101.5, 103.0 + NIGHT) < 4.0
    assert age.at(101.5, 104.0 + NIGHT) < 5.0
    assert age.at(104.0 + NIGHT, 104.5 + NIGHT) == 0.5  # another step
    assert age.at(0.0, 105.0 + NIGHT) == 0.0
    assert age.at(105.0 + NIGHT, 105.0 + 2 * NIGHT) < 3.0  # one that began just before


def test_a_step_that_hangs_grows_old() -> None:
    age = StepAge(0.0)
    for second in range(1, 101):
        last = age.at(0.5, float(second))
    assert last == 99.5


@pytest.mark.parametrize("kind", [TextWorker, EmbeddingWorker])
def test_a_worker_that_slept_in_a_step_does_not_call_it_hung(kind: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)
    worker = kind(Pipe(io.BufferedReader(io.BytesIO()), io.BytesIO()))
    began = time.monotonic()
    cache = SimpleNamespace(used=0)
    core = SimpleNamespace(
        pipeline=SimpleNamespace(steps=1, step_started=began, step_predicted=0.1),
        scheduler=SimpleNamespace(active=(), waiting=(), cache=cache, suspended=0),
        steps=1,
        step_started=began,
        step_predicted=0.1,
        running=1,
        waiting=0,
    )
    worker._beat_of(core)
    clock.slept = NIGHT
    assert worker._beat_of(core).step_age_s < 60.0


# -- downloads ---------------------------------------------------------------------------------------


class Line:
    """A link whose first answers break off, each after `seconds`."""

    ranged = True
    host = "hub.example"

    def __init__(self, data: bytes, clock: Clock, breaks: list[float]) -> None:
        self.remote = SimpleNamespace(name="m.gguf", sha256=None)
        self._data, self._clock, self._breaks = data, clock, breaks

    @contextmanager
    def open(self, start: int, end: int, size: int) -> Iterator[Iterator[bytes]]:
        yield self._pieces(start, end)

    def _pieces(self, start: int, end: int) -> Iterator[bytes]:
        if self._breaks:
            if start == 0:
                yield self._data[:10]
            self._clock.slept += self._breaks.pop(0)
            raise Trouble("the connection broke")
        yield self._data[start:end]


def _download(folder: Path, clock: Clock, breaks: list[float]) -> bytes:
    data = bytes(range(250))
    line: Any = Line(data, clock, breaks)
    target, table = FileTarget(folder / "f", 250), RangeTable(folder / "f.ranges", 250, 100)
    tuning = Tuning(connections=1, piece=100, span=100, stall_s=20.0, patience_s=100.0, backoff_s=0.0)
    try:
        Download(line, target, table, lambda _: None, msgspec.structs.replace(tuning)).run()
    finally:
        target.close()
        table.close()
    return (folder / "f").read_bytes()


def test_a_pull_that_slept_tries_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert _download(tmp_path, Clock(monkeypatch), [NIGHT, 1.0, NIGHT]) == bytes(range(250))


def test_a_pull_whose_server_stays_silent_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(DownloadFailed, match="cannot download"):
        _download(tmp_path, Clock(monkeypatch), [20.0] * 50)
