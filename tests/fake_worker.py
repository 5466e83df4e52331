"""A worker without a model: speaks the protocol, behaves as it is told, misbehaves too.

fake_worker.py '{"load": "ok", ...}'      options, see OPTIONS
prompt text "echo a b c", "slow 50", …    behaviour of one request, see Fake.begin
"""

from __future__ import annotations

import json
import os
import queue
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any

from edgellm import __version__, platform
from edgellm.contracts.events import ChoiceDone, Event, Failed, Finished, Started, TextDelta, Timings, Usage
from edgellm.contracts.request import GenerateRequest, Text
from edgellm.contracts.runner import RunnerInfo
from edgellm.engine import protocol
from edgellm.engine.protocol import (
    Cancel,
    Emitted,
    FrameReader,
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
from edgellm.errors import GenerationFailed, LoadFailed

OPTIONS: dict[str, Any] = {
    "hello": "ok",  # ok, version, protocol, none (silence), garbage
    "load": "ok",  # ok, error, die, stop (SIGSTOP), stall (heartbeats only)
    "load_s": 0.0,
    "import_s": 0.0,  # before it loads, no thread of it running: as where a library comes from a slow disk
    "starts": "",  # a file that gets a line with pid and time at every start
    "bad_starts": -1,  # `load` applies to so many starts, then "ok"; -1: to all
    "tick_s": 0.002,  # one word per request
    "beat_s": 0.05,
    "room": 0,  # tokens of context and of capacity that there is room for; 0: as placed
    "deaf": False,  # ignores Shutdown and end of file
    "pdeathsig": True,
    "say": "",  # printed to stdout by the load, as native code does
}


class Fake:
    def __init__(self, options: dict[str, Any]) -> None:
        self.options = options
        self.inbox: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self.lock = threading.Lock()
        self.jobs: dict[str, list[Event]] = {}
        self.hanging: set[str] = set()
        self.step_age = 0.0
        self.source, self.sink = platform.take_stdio_for_frames()
        if options["pdeathsig"]:
            platform.become_killable_with_parent()

    def send(self, message: Any) -> None:
        self.write(protocol.encode(message))

    def write(self, data: bytes) -> None:
        with self.lock:
            try:
                self.sink.write(data)
                self.sink.flush()
            except OSError:
                if not self.options["deaf"]:
                    os._exit(0)

    def read(self) -> None:
        reader = FrameReader(ToWorker)
        while data := os.read(self.source.fileno(), 1 << 16):
            for message in reader.feed(data):
                self.inbox.put(message)
        if not self.options["deaf"]:
            os._exit(0)

    def beat(self) -> None:
        while True:
            self.send(Heartbeat(1, self.step_age, 0.1, len(self.jobs) + len(self.hanging), 0, 10 * len(self.jobs)))
            time.sleep(self.options["beat_s"])

    def run(self) -> None:
        bad = self.count_start()
        self.greet()
        threading.Thread(target=self.read, daemon=True).start()
        load = self.inbox.get()
        assert isinstance(load, Load)
        time.sleep(self.options["import_s"])
        threading.Thread(target=self.beat, daemon=True).start()
        self.load(load, self.options["load"] if bad else "ok")
        while True:
            self.receive()
            self.step()

    def count_start(self) -> bool:
        """Whether this start is one of the bad ones."""
        if not self.options["starts"]:
            return True
        path = Path(self.options["starts"])
        with path.open("a") as file:
            file.write(f"{os.getpid()} {time.time()}\n")
        bad = self.options["bad_starts"]
        return bool(bad < 0 or len(path.read_text().splitlines()) <= bad)

    def greet(self) -> None:
        match self.options["hello"]:
            case "ok":
                self.send(Hello(protocol.PROTOCOL, __version__, os.getpid()))
            case "version":
                self.send(Hello(protocol.PROTOCOL, "99.0.0", os.getpid()))
            case "protocol":
                self.send(Hello(99, __version__, os.getpid()))
            case "garbage":
                self.write(b"Segmentation fault, or some other text that is no frame\n")
            case "none":
                time.sleep(1000)

    def load(self, load: Load, how: str) -> None:
        if self.options["say"]:
            os.write(1, self.options["say"].encode() + b"\n")
        for part in range(4):
            self.send(Loading(part / 4))
            time.sleep(self.options["load_s"] / 4)
            if part == 1 and how == "error":
                self.send(LoadError(LoadFailed(f"{load.model}: no such tensor", hint="pull it again").info))
                os._exit(0)
            if part == 1 and how == "die":
                os.write(2, b"GGML_ASSERT(false) failed\n")
                os.kill(os.getpid(), signal.SIGKILL)
            if part == 1 and how == "stop":
                os.kill(os.getpid(), signal.SIGSTOP)
            if part == 1 and how == "stall":
                time.sleep(1000)
        place, room = load.placement, self.options["room"]
        context, capacity = room or place.context, room or place.capacity
        self.send(Ready(RunnerInfo("fake", context, capacity, place.max_sequences, 512), 0.01))

    def receive(self) -> None:
        wait = not self.jobs
        while True:
            try:
                message = self.inbox.get(block=wait)
            except queue.Empty:
                return
            wait = False
            match message:
                case Generate(request):
                    self.begin(request)
                case Cancel(number):
                    self.jobs.pop(number, None)
                    self.hanging.discard(number)
                case Shutdown() if not self.options["deaf"]:
                    os._exit(0)

    def begin(self, request: GenerateRequest) -> None:
        assert isinstance(request.prompt, Text)
        verb, _, rest = request.prompt.text.partition(" ")
        words: list[str] = []
        match verb:
            case "echo":
                words = rest.split()
            case "slow":
                words = ["w"] * int(rest)
            case "flood":  # KiB
                words = ["x" * 1024] * int(rest)
            case "count":
                words = [str(len(rest))]
            case "die-prefill":
                os.kill(os.getpid(), signal.SIGKILL)
            case "stop-prefill":
                os.kill(os.getpid(), signal.SIGSTOP)
            case "die-decode" | "stop-decode" | "garbage":
                words = ["one", "two", verb]
            case "hang":
                self.hanging.add(request.id)
                return
            case "stuck":
                self.step_age = 1000.0
                return
            case "fail":
                self.send(Emitted([(request.id, Failed(GenerationFailed("not a number").info))]))
                return
        usage = Usage(1, len(words))
        end: list[Event] = [ChoiceDone("stop"), Finished(usage, Timings(0.0, 0.0, 0.0, 0.0))]
        self.jobs[request.id] = [Started(1, 0, 1), *(TextDelta(word + " ") for word in words), *end]

    def step(self) -> None:
        events: list[tuple[str, Event]] = []
        for number, left in list(self.jobs.items()):
            event = left.pop(0)
            if isinstance(event, TextDelta):
                self.misbehave(event.text.strip())
            events.append((number, event))
            if not left:
                del self.jobs[number]
        if events:
            self.send(Emitted(events))
            time.sleep(self.options["tick_s"])

    def misbehave(self, word: str) -> None:
        match word:
            case "die-decode":
                os.kill(os.getpid(), signal.SIGKILL)
            case "stop-decode":
                os.kill(os.getpid(), signal.SIGSTOP)
            case "garbage":
                self.write(b"\xff" * 64)


if __name__ == "__main__":
    Fake(OPTIONS | json.loads(sys.argv[1] if len(sys.argv) > 1 else "{}")).run()
