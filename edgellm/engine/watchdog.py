"""Watchdog: notices a worker that lives but does not work."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from edgellm.engine.patience import Supervision
from edgellm.engine.protocol import FromWorker, Heartbeat, Hello, Loading, Ready
from edgellm.errors import EdgeError, WorkerDied

_HINT = "the model is being started again: send the request once more"


class Watchdog:
    """Watches one worker from its start; calls `bite` once, with the reason, when it hangs. `stop` it at the end.

    Silence is counted in ticks, not read off a clock: when the daemon itself was held up or suspended, one tick
    passes, what the worker sent meanwhile is heard before the next, and nobody is killed.
    """

    def __init__(
        self,
        model: str,
        limits: Supervision,
        bite: Callable[[EdgeError], None],
        suspended: Callable[[], bool] = lambda: False,
    ) -> None:
        """`suspended` tells whether the system keeps the process from running. Asked until it has begun to load: Python
        and an engine's libraries may come from a slow disk, and while one is imported no thread of the process may get
        to run. A process that starts slowly gets its time, one that was stopped does not need it.
        """
        self.service_s = 0.0  # since Ready
        self._model = model
        self._limits = limits
        self._bite = bite
        self._suspended = suspended
        self._greeted = False
        self._begun = False  # it has loaded something
        self._stopped = 0.0  # how long it has been suspended
        self._tick_s = min(1.0, limits.heartbeat_timeout_s / 10)
        self._patience = limits.hello_timeout_s
        self._silent = 0.0
        self._stalled = 0.0
        self._done = -1.0  # load progress
        self._ready = False
        self._loop = asyncio.get_running_loop()
        self._timer = self._loop.call_later(self._tick_s, self._tick)

    def heard(self, message: FromWorker) -> None:
        """The worker sent this."""
        self._silent = 0.0
        match message:
            case Hello():
                self._greeted = True
            case Loading(done) if done > self._done:
                self._done = done
                self._stalled = 0.0
                if done > 0:
                    self._begin()
            case Ready():
                self._begin()
                self._ready = True
            case Heartbeat() if self._ready:
                self._check_step(message)

    def stop(self) -> None:
        self._timer.cancel()

    def _begin(self) -> None:
        self._begun = True
        self._stopped = 0.0
        self._patience = self._limits.heartbeat_timeout_s

    def _tick(self) -> None:
        self._silent += self._tick_s
        if self._ready:
            self.service_s += self._tick_s
        elif self._greeted:
            self._stalled += self._tick_s
        if not self._begun:
            self._stopped = self._stopped + self._tick_s if self._suspended() else 0.0
        if self._stopped >= self._limits.heartbeat_timeout_s:
            self._report(f"was stopped before it began to load, {self._stopped:.0f} s ago,")
        elif self._silent >= self._patience:
            self._report(f"gave no sign of life for {self._patience:g} s")
        elif self._stalled >= self._limits.load_stall_s:
            self._report(f"made no progress in loading for {self._limits.load_stall_s:g} s")
        else:
            self._timer = self._loop.call_later(self._tick_s, self._tick)

    def _check_step(self, beat: Heartbeat) -> None:
        allowed = max(self._limits.step_floor_s, self._limits.step_factor * beat.step_predicted_s)
        if beat.step_age_s > allowed:
            self._report(f"has been in one step for {beat.step_age_s:.0f} s, predicted {beat.step_predicted_s:.1f} s")

    def _report(self, what: str) -> None:
        self.stop()
        self._bite(WorkerDied(f"the process running {self._model} {what} and was killed", hint=_HINT))
