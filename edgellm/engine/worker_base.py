"""What every worker process is: pipes, threads, a load, a loop and an end. What it answers with is its kind's.

reader thread      frames in; end of file means the daemon is gone: exit at once, whatever else runs
prompt thread      makes token ids of what is asked, so that a long text does not hold up a step
heartbeat thread   every second: step number, how long it runs, how long it should
main thread        load; then receive, schedule, run, emit
"""

from __future__ import annotations

import os
import queue
import sys
import threading
import time
import traceback
from abc import ABC, abstractmethod
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, BinaryIO, ClassVar, Generic, Protocol, TypeVar

from msgspec.structs import replace

from edgellm import __version__
from edgellm.contracts.events import Failed
from edgellm.contracts.runner import RunnerInfo
from edgellm.engine import protocol
from edgellm.engine.pacing import Emission
from edgellm.engine.protocol import (
    Cancel,
    Embed,
    Emitted,
    FromWorker,
    Generate,
    Heartbeat,
    Hello,
    Load,
    LoadError,
    Loading,
    Ready,
    Request,
    Shutdown,
    ToWorker,
)
from edgellm.engine.step_age import StepAge
from edgellm.errors import (
    SEE_LOGS,
    EdgeError,
    ErrorInfo,
    GenerationFailed,
    InsufficientMemory,
    LoadFailed,
    WorkerDied,
    short_of_memory,
)


class Pipe:
    """Frames out, from any thread; frames in, on a thread of their own."""

    def __init__(self, source: BinaryIO, sink: BinaryIO) -> None:
        self._source = source
        self._sink = sink
        self._lock = threading.Lock()

    def send(self, message: FromWorker) -> None:
        frame = protocol.encode(message)
        with self._lock:
            try:
                self._sink.write(frame)
                self._sink.flush()
            except OSError:
                os._exit(0)  # nobody listens any more

    def read_into(self, inbox: queue.SimpleQueue[Any]) -> None:
        """Runs until the daemon closes the pipe, then ends the process: native code may be deep in a step."""
        reader = protocol.FrameReader(ToWorker)
        descriptor = self._source.fileno()
        while data := os.read(descriptor, 1 << 16):
            for message in reader.feed(data):
                inbox.put(message)
        os._exit(0)


class Core(Protocol):
    """A loaded model that answers requests step by step. Used from the main thread."""

    @property
    def idle(self) -> bool: ...
    def step(self) -> list[Emission]: ...
    def cancel(self, request_id: str) -> None: ...
    def fail_all(self, error: EdgeError) -> list[Emission]: ...


class Prepared:
    """A request, and the token ids of what it asks, or why there are none."""

    def __init__(self, request: Any, content: Any) -> None:
        self.request = request
        self.content = content


CoreT = TypeVar("CoreT", bound=Core)


class Worker(ABC, Generic[CoreT]):
    """Everything after the pipes are open. A kind of worker says how it loads, prepares, begins and reports."""

    asked: ClassVar[str]  # what a request brings, in messages

    def __init__(self, pipe: Pipe) -> None:
        self._pipe = pipe
        self._inbox: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._model = ""
        self._core: CoreT | None = None
        self._prompts = ThreadPoolExecutor(1, thread_name_prefix="prompt")
        self._reported = 0.0  # of loading
        self._preparing: set[str] = set()  # asked for, not prepared yet
        self._step_age = StepAge(time.monotonic())  # of the heartbeat thread

    @abstractmethod
    def _load(self, load: Load) -> tuple[CoreT, RunnerInfo]:
        """The model, ready to answer."""

    @abstractmethod
    def _encode(self, request: Any) -> Any:
        """Token ids of what is asked. On a prompt thread; raises EdgeError."""

    @abstractmethod
    def _begin(self, core: CoreT, request: Any, content: Any) -> None:
        """Hand a request that is prepared to the core."""

    @abstractmethod
    def _beat_of(self, core: CoreT) -> Heartbeat:
        """How the core is. On the heartbeat thread."""

    def run(self) -> None:
        self._pipe.send(Hello(protocol.PROTOCOL, __version__, os.getpid()))
        threading.Thread(target=self._pipe.read_into, args=(self._inbox,), name="reader", daemon=True).start()
        threading.Thread(target=self._beat, name="heartbeat", daemon=True).start()
        first = self._inbox.get()
        if not isinstance(first, Load):
            return
        began = time.monotonic()
        self._model = first.model
        try:
            self._core, info = self._load(first)
        except EdgeError as error:
            self._pipe.send(LoadError(_by_name(error.info, first)))
            return
        except Exception as error:
            self._pipe.send(LoadError(_unforeseen(error, first.model).info))
            raise
        self._pipe.send(Ready(info, time.monotonic() - began))
        self._loop(self._core)

    def _report_loading(self, done: float) -> None:
        """Engines report every tensor; a frame for each percent is enough."""
        if done >= 1.0 or done - self._reported >= 0.01:
            self._reported = done
            self._pipe.send(Loading(done))

    # -- serving ---------------------------------------------------------------------------------

    def _loop(self, core: CoreT) -> None:
        """Receive, schedule, run, emit. Waits for a message when there is nothing to run."""
        while self._receive(core):
            try:
                emitted = core.step()
            except EdgeError as error:
                emitted = core.fail_all(error)
            except Exception as error:
                # The engine's state is unknown now: fail what runs, retriably; the daemon starts a new process.
                why = WorkerDied(f"the engine failed ({type(error).__name__})", hint=_logs(self._model))
                self._emit(core, core.fail_all(why))
                raise
            self._emit(core, emitted)

    def _emit(self, core: CoreT, events: list[Emission]) -> None:  # noqa: ARG002 - some kinds ask it
        if events:
            self._pipe.send(Emitted(events))

    def _receive(self, core: CoreT) -> bool:
        """Take every message that has arrived; False on Shutdown."""
        for message in self._messages(wait=core.idle):
            match message:
                case Generate(request) | Embed(request):
                    self._preparing.add(request.id)
                    self._threads(request).submit(self._prepare, request)
                case Prepared():
                    self._accept(core, message)
                case Cancel(request_id):
                    self._cancel(core, request_id)
                case Shutdown():
                    return False
                case Load():
                    pass  # one model per process; the daemon never asks twice
        return True

    def _messages(self, wait: bool) -> Iterable[Any]:
        if wait:
            yield self._inbox.get()
        while True:
            try:
                yield self._inbox.get_nowait()
            except queue.Empty:
                return

    def _threads(self, request: Any) -> ThreadPoolExecutor:  # noqa: ARG002 - some kinds ask it
        """Where a request is prepared."""
        return self._prompts

    def _prepare(self, request: Request) -> None:
        """On a prompt thread."""
        if request.id not in self._preparing:
            return  # cancelled before its turn came
        content: Any
        try:
            content = self._encode(request)
        except EdgeError as error:
            content = error
        except Exception as error:
            _log_without_content(error, self.asked)
            content = GenerationFailed(
                f"the {self.asked} could not be prepared ({type(error).__name__})", hint=SEE_LOGS
            )
        self._inbox.put(Prepared(request, content))

    def _accept(self, core: CoreT, prepared: Prepared) -> None:
        request, content = prepared.request, prepared.content
        if request.id not in self._preparing:
            return  # cancelled meanwhile
        self._preparing.discard(request.id)
        if isinstance(content, EdgeError):
            self._emit(core, [(request.id, Failed(content.info))])
        else:
            self._begin(core, request, content)

    def _cancel(self, core: CoreT, request_id: str) -> None:
        self._preparing.discard(request_id)
        core.cancel(request_id)

    # -- proof of life ---------------------------------------------------------------------------

    def _beat(self) -> None:
        """Beats during loading, long steps and idleness alike; only a stopped process is silent."""
        while True:
            core = self._core
            self._pipe.send(Heartbeat(0, 0.0, 0.0, 0, 0, 0) if core is None else self._beat_of(core))
            time.sleep(protocol.HEARTBEAT_S)


def _by_name(error: ErrorInfo, load: Load) -> ErrorInfo:
    """Engines name the file, which in a store is called by its digest; people know the model."""
    path = Path(load.path)
    return replace(error, message=error.message.replace(str(path), load.model).replace(path.name, load.model))


def _unforeseen(error: Exception, model: str) -> EdgeError:
    """What no engine has put into words while it loaded."""
    if short_of_memory(error):
        hint = "close other programs, or raise the limit that the daemon runs under"
        return InsufficientMemory(f"there was no memory left to load {model}", hint=hint)
    return LoadFailed(f"{model} failed to load ({type(error).__name__})", hint=_logs(model))


def _logs(model: str) -> str:
    return f"`edgellm logs {model}` says more"


def _log_without_content(error: Exception, asked: str) -> None:
    """Where the preparation of a request failed; the message may quote the request, which no log shall hold."""
    frames = "".join(traceback.format_tb(error.__traceback__))
    sys.stderr.write(f"{frames}{type(error).__name__} while a {asked} was prepared\n")
    sys.stderr.flush()


def serve(kind: type[Worker[Any]]) -> None:
    """Run a worker on this process's standard input and output, and exit with it."""
    from edgellm import platform

    source, sink = platform.take_stdio_for_frames()
    platform.become_killable_with_parent()
    code = 0
    try:
        kind(Pipe(source, sink)).run()
    except Exception:  # the daemon keeps the end of stderr for its error message
        traceback.print_exc()
        code = 1
    # Not a return: daemon threads and native libraries may hold up, or crash, a normal exit.
    sys.stderr.flush()
    os._exit(code)
