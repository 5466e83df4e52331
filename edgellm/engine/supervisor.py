"""LocalModel: a model in a worker process. Requests in, events out; loads when first needed, restarts what dies.

    stopped -> loading -> ready -> draining -> stopped
                  |         |
                  +-> restarting (the process died; backoff, then loading again) -> ready
                  +-> failed (the engine refused the file, or the process keeps dying)

A request waits while the model loads; whatever dies, it ends in exactly one `Finished` or `Failed`. A process that
dies fails the requests it had, retriably, at once; those that come later wait for the next one.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, Mapping, Sequence
from pathlib import Path

import msgspec

from edgellm.contracts.events import Event, Failed, Finished, Progress
from edgellm.contracts.runner import RunnerInfo
from edgellm.contracts.status import Health, State
from edgellm.engine.open_requests import OpenRequests
from edgellm.engine.patience import Restarts, Supervision
from edgellm.engine.process import WorkerProcess, within, worker_argv
from edgellm.engine.protocol import (
    Emitted,
    FromWorker,
    Heartbeat,
    Hello,
    Load,
    LoadError,
    Loading,
    Ready,
    Request,
)
from edgellm.engine.stream import AnswerStream
from edgellm.engine.watchdog import Watchdog
from edgellm.errors import SEE_LOGS, EdgeError, Overloaded, Unavailable, WorkerDied

logger = logging.getLogger(__name__)

_LATER = "try again in a moment, or raise queue_requests"
_LOAD_GUESS_S = 5.0  # before the first report of progress


class LocalModel:
    """One model, at most one worker process. To be used from one event loop."""

    def __init__(
        self,
        load: Load,
        *,
        supervision: Supervision | None = None,
        log_path: Path | None = None,
        argv: Sequence[str] | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        """`load` says what to load; nothing is started yet. `argv` replaces the worker's command in tests.

        `environment` is added to the worker's.
        """
        self.load = load
        self.info: RunnerInfo | None = None  # of the worker in service
        self.heartbeat: Heartbeat | None = None  # its latest
        self.restarts = 0  # processes started in place of dead ones, since this object was made
        self._limits = supervision or Supervision()
        self._log_path = log_path
        self._environment = environment
        self._argv = list(argv) if argv is not None else worker_argv(embeds=load.embeds)
        self._state: State = "stopped"
        self._error: EdgeError | None = None  # why restarting or failed
        self._loaded = 0.0  # 0..1
        self._loading_since = 0.0  # monotonic
        self._retry_at = 0.0  # monotonic; when failed, refuse until then
        self._restarts = Restarts(self._limits)
        self._pause_s = 0.0  # before the next start
        self._begun = asyncio.Event()  # the first worker process runs, or cannot
        self._requests = OpenRequests(self._limits.unread_bytes)
        self._worker: WorkerProcess | None = None
        self._watchdog: Watchdog | None = None
        self._life: asyncio.Task[None] | None = None
        self._stopping: asyncio.Task[None] | None = None
        self._burial: asyncio.Task[None] | None = None  # of the last worker process

    # -- what others see ---------------------------------------------------------------------------

    @property
    def state(self) -> State:
        return self._state

    @property
    def pid(self) -> int | None:
        """Of the worker process, while there is one."""
        return self._worker.pid if self._worker is not None else None

    @property
    def busy(self) -> int:
        """Requests whose reader has not got everything yet."""
        return len(self._requests)

    @property
    def refusal(self) -> EdgeError | None:
        """Why a request would be refused right now, if it would."""
        if self._state == "draining":
            return Unavailable(f"{self.load.model} is being unloaded", hint="send the request again", retry_after=1.0)
        left = self._retry_at - time.monotonic()
        if self._state == "failed" and self._error is not None and left > 0:
            return EdgeError.from_info(msgspec.structs.replace(self._error.info, retry_after=left))
        return None

    def status(self) -> Health:
        """State and load as the daemon sees them now (a heartbeat may be a second old)."""
        detail = None
        if self._state == "loading":
            detail = f"{self._loaded:.0%} loaded"
        elif self._error is not None and self._state in ("restarting", "failed"):
            detail = self._error.message
        return Health(self._state, self._requests.running, self._requests.waiting, detail)

    async def generate(self, request: Request) -> AsyncGenerator[Event, None]:
        """Stream the answer; while the model loads, `Progress("load", …)` comes first. Closing cancels the request."""
        with self._requests.opened(request) as stream:
            self._accept(stream)
            while True:
                event = await stream.next()
                yield event
                if isinstance(event, Finished | Failed):
                    return

    async def preload(self) -> None:
        """Start to load; returns once the worker process runs. Raises EdgeError when it is refused or cannot start."""
        if self.refusal is not None:
            raise self.refusal
        self._wake()
        await self._begun.wait()
        if self._state == "failed" and self._error is not None:
            raise self._error

    async def stop(self, grace_s: float | None = None) -> None:
        """Unload. Running answers get `grace_s` seconds to finish (None: as configured); new requests are refused.

        Afterwards the model is stopped and a request would load it again. Concurrent calls share one stop.
        """
        if self._stopping is None:
            grace = self._limits.grace_s if grace_s is None else grace_s
            self._stopping = asyncio.create_task(self._stop(grace), name=f"stop {self.load.model}")
        await asyncio.shield(self._stopping)

    # -- requests ----------------------------------------------------------------------------------

    def _accept(self, stream: AnswerStream) -> None:
        """Have a request answered, now or once the model is loaded; or end it at once with why not."""
        refusal = self.refusal or self._crowd()
        if refusal is not None:
            stream.fail(refusal)
            return
        self._requests.enqueue(stream)
        self._wake()
        if self._state != "ready":
            stream.put(Progress("load", self._loaded))
        self._send()

    def _crowd(self) -> EdgeError | None:
        """Why one more cannot wait here, if it cannot: what the worker has not been given yet is bounded, too."""
        if self._requests.unsent < self.load.limits.queue_requests:
            return None
        name, many = self.load.model, f"{self._requests.unsent} requests wait already"
        if self._state == "ready":
            return Overloaded(f"{name} cannot take requests so fast: {many}", hint=_LATER, retry_after=1.0)
        gone, done = time.monotonic() - self._loading_since, self._loaded
        left = gone * (1 - done) / done if done > 0 else _LOAD_GUESS_S
        return Unavailable(f"{name} is being loaded, and {many}", hint=_LATER, retry_after=max(1.0, round(left, 1)))

    def _send(self) -> None:
        if self._state == "ready" and self._worker is not None:
            self._requests.send(self._worker)

    # -- messages of the worker ----------------------------------------------------------------------

    def _on_message(self, message: FromWorker) -> None:
        if self._watchdog is not None:
            self._watchdog.heard(message)
        match message:
            case Emitted(events):
                for number, event in events:
                    if self._requests.relay(number, event) and isinstance(event, Finished):
                        self._restarts.answered()
            case Heartbeat():
                self.heartbeat = message
            case Loading(done):
                self._loaded = min(max(done, 0.0), 1.0)
                self._requests.tell_unsent(Progress("load", self._loaded))
            case Ready(info, load_s):
                self._on_ready(info, load_s)
            case LoadError(error):
                if self._worker is not None:
                    self._worker.kill(EdgeError.from_info(error))
            case Hello():
                pass

    def _on_ready(self, info: RunnerInfo, load_s: float) -> None:
        logger.info("%s loaded in %.2f s (pid %s)", self.load.model, load_s, self.pid)
        self.info, self._loaded = info, 1.0
        self._error = None
        if self._state != "draining":
            self._state = "ready"
        self._send()

    # -- the life of worker processes ----------------------------------------------------------------

    def _wake(self) -> None:
        if self._life is None:
            self._state, self._error, self._restarts = "loading", None, Restarts(self._limits)
            self._begun.clear()
            self._life = asyncio.create_task(self._live(), name=f"life of {self.load.model}")

    async def _live(self) -> None:
        """From the first need of the model until it is stopped or given up: one worker after the other."""
        try:
            while await self._run_worker():
                logger.warning("%s; restarting", self._error)
                self.restarts += 1
                await asyncio.sleep(self._pause_s)
        except Exception as error:
            logger.exception("supervising %s failed", self.load.model)
            why = EdgeError(f"supervising {self.load.model} failed: {type(error).__name__}", hint=SEE_LOGS)
            self._give_up(why, self._limits.cooldown_s)
        finally:
            self._life = None
            self._begun.set()
            if self._requests.unsent and self._state == "failed":  # came while the last process was being taken away
                self._wake()

    async def _run_worker(self) -> bool:
        """One worker process from start to reaped; whether another one shall follow."""
        self._loaded, self._loading_since = 0.0, time.monotonic()
        worker = WorkerProcess(self.load.model, self._on_message, self._send, self._log_path)
        watchdog = Watchdog(self.load.model, self._limits, worker.kill, worker.suspended)
        self._worker, self._watchdog = worker, watchdog
        try:
            await worker.start(self._argv, self._environment)
            self._begun.set()
            worker.post(self.load)
            error = await asyncio.shield(worker.ended)
            return self._judge(error, watchdog.service_s)
        except EdgeError as error:
            return self._judge(error, 0.0)
        finally:
            watchdog.stop()
            polite_s = self._limits.polite_s if self.info is not None else 0.0  # one that loads does not listen
            self._worker = self._watchdog = self.info = self.heartbeat = None
            # A task of its own: this one may be cancelled (stop) while it waits, and the process must be reaped still.
            self._burial = asyncio.create_task(worker.close(polite_s), name=f"end of {self.load.model}")
            await asyncio.shield(self._burial)

    def _judge(self, error: EdgeError, service_s: float) -> bool:
        """A worker has ended: fail what it had, and decide whether to start another."""
        if self._state == "draining":
            self._requests.fail_all(error)
            return False
        if not isinstance(error, WorkerDied):
            self._give_up(error, 0.0)
            return False
        pause_s = self._restarts.died(service_s)
        if pause_s is None:
            self._give_up(self._hopeless(error), self._limits.cooldown_s)
            return False
        self._pause_s = pause_s
        self._state, self._error = "restarting", error
        self._requests.fail_all(error)
        return True

    def _give_up(self, error: EdgeError, cooldown_s: float) -> None:
        logger.error("%s", error.message)
        self._state, self._error = "failed", error
        self._retry_at = time.monotonic() + cooldown_s
        self._requests.fail_all(error)

    def _hopeless(self, last: WorkerDied) -> WorkerDied:
        return WorkerDied(
            f"{self.load.model} was given up after {self._restarts.deaths} deaths in a row; the last: {last.message}",
            hint=f"`edgellm logs {self.load.model}` says more; a smaller context or another model may work",
            retry_after=self._limits.cooldown_s,
        )

    async def _stop(self, grace_s: float) -> None:
        try:
            if self._life is None:
                return
            self._state = "draining"
            name, requests = self.load.model, self._requests
            requests.fail_unsent(Unavailable(f"{name} is being unloaded", hint="send the request again"))
            await within(grace_s, requests.none)
            requests.abort_all(Unavailable(f"{name} was unloaded before the answer was complete"))
            if self._life is not None:
                self._life.cancel()
                await asyncio.wait([self._life])
            if self._burial is not None:
                await asyncio.wait([self._burial])
        finally:
            self._life = None  # also where it was cancelled before its first line ran
            self._state, self._error, self._stopping = "stopped", None, None
