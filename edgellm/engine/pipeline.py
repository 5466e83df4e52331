"""Steps on their way through a runner, and how long the device was busy with each."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import msgspec

from edgellm.contracts.runner import Result, TokenRunner
from edgellm.engine.step import Step


class Collected(msgspec.Struct, frozen=True):
    """A step that is over. `now`: when; `seconds`: since the device was free for it."""

    step: Step
    results: Sequence[Result]
    now: float
    seconds: float


class Pipeline:
    """Submits steps and collects them in order. What is read by the heartbeat thread:

    steps              how many have begun
    step_started       when the one that runs did: the device was free for it, and it had been submitted; 0: none runs
    step_predicted     how long it should take, seconds
    """

    def __init__(self, runner: TokenRunner) -> None:
        self._runner = runner
        self._flying: deque[tuple[Step, Any]] = deque()
        self.steps = 0
        self.step_started = 0.0
        self.step_predicted = 0.0
        self.step_seconds = 0.0  # of the latest that ended

    @property
    def empty(self) -> bool:
        """Whether nothing is in flight."""
        return not self._flying

    def submit(self, step: Step) -> None:
        """Raises what the runner raises."""
        if self.empty:
            self._begin(step, time.monotonic())
        self._flying.append((step, self._runner.submit(step.rows)))

    def collect(self) -> Collected:
        """Wait for the first step in flight. Raises what the runner raises."""
        step, ticket = self._flying.popleft()
        results = self._runner.collect(ticket)
        now = time.monotonic()
        self.step_seconds = now - self.step_started
        if self.empty:
            self.step_started = 0.0
        else:
            self._begin(self._flying[0][0], now)
        return Collected(step, results, now, self.step_seconds)

    def drain(self) -> None:
        """The engine failed: wait for what is still in flight, whatever becomes of it."""
        while self._flying:
            with suppress(Exception):
                self._runner.collect(self._flying.popleft()[1])
        self.step_started = 0.0

    def _begin(self, step: Step, now: float) -> None:
        self.steps += 1
        self.step_predicted, self.step_started = step.predicted_s, now
