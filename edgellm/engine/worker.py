"""The worker process: one loaded model behind its own stdin and stdout. `python -m edgellm.engine.worker`

reader thread      frames in; end of file means the daemon is gone: exit at once, whatever else runs
prompt threads     chat template and tokeniser, so that a long conversation does not hold up a step; one of two is for
                   texts so long that others should not wait for them
heartbeat thread   every second: step number, how long it runs, how long it should
main thread        load; then receive, schedule, run, emit
"""

from __future__ import annotations

import math
import os
import queue
import sys
import threading
import time
import traceback
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, BinaryIO

from msgspec.structs import replace

from edgellm import __version__
from edgellm.contracts.engine import EnginePlugin, Tokenizer
from edgellm.contracts.events import Failed
from edgellm.contracts.request import GenerateRequest, Messages, Prompt, Text, Tokens
from edgellm.contracts.runner import TokenRunner
from edgellm.engine import protocol
from edgellm.engine.breakers import breaker_tokens
from edgellm.engine.core import EngineCore
from edgellm.engine.pacing import Emission, Pacer
from edgellm.engine.prompt import EncodedPrompt, PromptEncoder
from edgellm.engine.protocol import (
    Cancel,
    Emitted,
    FromWorker,
    Generate,
    Heartbeat,
    Hello,
    Load,
    LoadError,
    Loading,
    Ready,
    Shutdown,
    ToWorker,
)
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

LONG_PROMPT = 200_000  # characters; a tenth of a second, and far more for text that is no language


class Prepared:
    """A request whose prompt is tokenised, or why it could not be."""

    def __init__(self, request: GenerateRequest, prompt: EncodedPrompt | EdgeError) -> None:
        self.request = request
        self.prompt = prompt


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


class Worker:
    """Everything after the pipes are open."""

    def __init__(self, pipe: Pipe) -> None:
        self._pipe = pipe
        self._inbox: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._model = ""
        self._core: EngineCore | None = None
        self._encoder: PromptEncoder | None = None
        self._tokenizer: Tokenizer | None = None
        self._prompts = ThreadPoolExecutor(1, thread_name_prefix="prompt")
        self._long_prompts = ThreadPoolExecutor(1, thread_name_prefix="long prompt")
        self._context = 0  # tokens
        self._reported = 0.0  # of loading
        self._pacer = Pacer()
        self._preparing: set[str] = set()  # asked for, prompt not ready yet

    def run(self) -> None:
        self._pipe.send(Hello(protocol.PROTOCOL, __version__, os.getpid()))
        threading.Thread(target=self._pipe.read_into, args=(self._inbox,), name="reader", daemon=True).start()
        threading.Thread(target=self._beat, name="heartbeat", daemon=True).start()
        first = self._inbox.get()
        if not isinstance(first, Load):
            return
        try:
            self._load(first)
        except EdgeError as error:
            self._pipe.send(LoadError(_by_name(error.info, first)))
            return
        except Exception as error:
            self._pipe.send(LoadError(_unforeseen(error, first.model).info))
            raise
        self._loop()

    # -- loading ---------------------------------------------------------------------------------

    def _load(self, load: Load) -> None:
        from edgellm import plugins
        from edgellm.formats.gguf import read_model
        from edgellm.placement.plan import trained_context

        began = time.monotonic()
        self._model = load.model
        plugin = plugins.engine(load.engine)
        model = read_model(Path(load.path))
        tokenizer = self._prompts.submit(plugin.tokenizer, model)  # beside the weights, not after them
        runner = plugin.load(model, load.placement, self._report_loading)
        self._start(load, runner, tokenizer.result(), trained_context(model))
        if load.draft:
            self._load_draft(load, plugin)
        self._pipe.send(Ready(runner.info, time.monotonic() - began))

    def _load_draft(self, load: Load, plugin: EnginePlugin) -> None:
        from edgellm.engine.draft_model import DraftModel, check_vocabulary
        from edgellm.formats.gguf import read_model

        assert self._core is not None
        assert self._tokenizer is not None
        model = read_model(Path(load.draft))
        check_vocabulary(load.model, self._tokenizer, plugin.tokenizer(model))
        # Its rounding cannot reach the text; and the process is the other model's, too, so it cannot measure its part.
        placement = replace(load.placement, exact=False, memory=0)
        self._core.scheduler.speculator.model = DraftModel(plugin.load(model, placement, lambda _done: None))

    def _report_loading(self, done: float) -> None:
        """Engines report every tensor; a frame for each percent is enough."""
        if done >= 1.0 or done - self._reported >= 0.01:
            self._reported = done
            self._pipe.send(Loading(done))

    def _start(self, load: Load, runner: TokenRunner, tokenizer: Tokenizer, trained: int | None) -> None:
        core = EngineCore(load.model, runner, tokenizer, limits=load.limits, trained=trained)
        core.warm_up()
        self._context = runner.info.context
        self._tokenizer = tokenizer
        self._encoder = PromptEncoder(tokenizer, core.context)
        self._prompts.submit(self._encoder.prepare)  # compiles the chat template before the first chat asks for it
        self._core = core

    # -- serving ---------------------------------------------------------------------------------

    def _loop(self) -> None:
        """Receive, schedule, run, emit. Waits for a message when there is nothing to run."""
        core = self._core
        assert core is not None
        while self._receive(core):
            try:
                emitted = core.step()
            except EdgeError as error:
                emitted = core.fail_all(error)
            except Exception as error:
                # The engine's state is unknown now: fail what runs, retriably; the daemon starts a new process.
                why = WorkerDied(f"the engine failed ({type(error).__name__})", hint=_logs(self._model))
                self._emit(core.fail_all(why))
                raise
            self._emit(emitted, core.pipeline.step_seconds)

    def _emit(self, events: list[Emission], next_s: float = 0.0) -> None:
        """Send, or hold text back for a moment. The next step is expected to take `next_s` seconds."""
        if ready := self._pacer.add(events, time.monotonic(), next_s):
            self._pipe.send(Emitted(ready))

    def _receive(self, core: EngineCore) -> bool:
        """Take every message that has arrived; False on Shutdown."""
        for message in self._messages(wait=core.idle):
            match message:
                case Generate(request):
                    self._preparing.add(request.id)
                    threads = self._long_prompts if characters(request.prompt) > LONG_PROMPT else self._prompts
                    threads.submit(self._prepare, request)
                case Prepared():
                    self._accept(core, message)
                case Cancel(request_id):
                    self._preparing.discard(request_id)
                    core.cancel(request_id)
                    self._pacer.forget(request_id)
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

    def _prepare(self, request: GenerateRequest) -> None:
        """On a prompt thread."""
        if request.id not in self._preparing:
            return  # cancelled before its turn came
        assert self._encoder is not None
        assert self._tokenizer is not None
        prompt: EncodedPrompt | EdgeError
        try:
            prompt = self._encoder.encode(request.prompt, self._fit(request))
            breaker_tokens(request.sampling, self._tokenizer)  # found here, so that no step waits for the search
        except EdgeError as error:
            prompt = error
        except Exception as error:
            _log_without_content(error)
            prompt = GenerationFailed(f"the prompt could not be prepared ({type(error).__name__})", hint=SEE_LOGS)
        self._inbox.put(Prepared(request, prompt))

    def _fit(self, request: GenerateRequest) -> int | None:
        """How long the prompt may be where it may be cut: the answer is to have room, half of the context at most."""
        if not request.sliding:
            return None
        room = request.max_tokens or self._context // 8
        return self._context - min(room, self._context // 2)

    def _accept(self, core: EngineCore, prepared: Prepared) -> None:
        request, prompt = prepared.request, prepared.prompt
        if request.id not in self._preparing:
            return  # cancelled meanwhile
        self._preparing.discard(request.id)
        if isinstance(prompt, EdgeError):
            self._emit([(request.id, Failed(prompt.info))])
        else:
            # With a prompt steps become long: text that is held back for a moment would wait for the end of one.
            self._emit(core.add(request, prompt), math.inf)

    # -- proof of life ---------------------------------------------------------------------------

    def _beat(self) -> None:
        """Beats during loading, long steps and idleness alike; only a stopped process is silent."""
        while True:
            self._pipe.send(self._pulse())
            time.sleep(protocol.HEARTBEAT_S)

    def _pulse(self) -> Heartbeat:
        core = self._core
        if core is None:
            return Heartbeat(0, 0.0, 0.0, 0, 0, 0)
        scheduler, steps = core.scheduler, core.pipeline
        started = steps.step_started
        return Heartbeat(
            step=steps.steps,
            step_age_s=time.monotonic() - started if started else 0.0,
            step_predicted_s=steps.step_predicted,
            running=len(scheduler.active),
            waiting=len(scheduler.waiting) + len(self._preparing),
            kv_used=scheduler.cache.used,
            suspended=scheduler.suspended,
        )


def characters(prompt: Prompt) -> int:
    """How much there is to tokenise."""
    match prompt:
        case Messages(messages):
            return sum(len(message.content) for message in messages)
        case Text(text):
            return len(text)
        case Tokens():
            return 0


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


def _log_without_content(error: Exception) -> None:
    """Where a prompt's own failure happened; its message may quote the prompt, which no log shall hold."""
    frames = "".join(traceback.format_tb(error.__traceback__))
    sys.stderr.write(f"{frames}{type(error).__name__} while a prompt was prepared\n")
    sys.stderr.flush()


def serve(kind: type[Worker]) -> None:
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


if __name__ == "__main__":
    serve(Worker)
