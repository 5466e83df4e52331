"""The worker's own order of things, without a process: prompts are prepared beside the steps."""

from __future__ import annotations

import io
import threading
import time

from fake_runner import FakeRunner, FakeTokenizer

from edgellm.contracts.engine import Placement
from edgellm.contracts.request import GenerateRequest, Message, Messages, Sampling, Text, Tokens
from edgellm.engine.protocol import Cancel, Generate, Load
from edgellm.engine.worker import LONG_PROMPT, TextWorker, characters
from edgellm.engine.worker_base import Pipe

ROOM = Placement(context=256, capacity=512, max_sequences=8, batch_tokens=64, threads=1, threads_batch=1)
LONG = "x" * (LONG_PROMPT + 1)


class Slow(FakeTokenizer):
    """Takes as long over a long text as the test likes."""

    def __init__(self) -> None:
        super().__init__()
        self.go_on = threading.Event()
        self.seen: list[int] = []

    def fewest(self, text: str) -> int:
        return 0

    def encode(self, text: str, *, special: bool) -> list[int]:
        self.seen.append(len(text))
        if len(text) > LONG_PROMPT:
            assert self.go_on.wait(60)
        return super().encode(text[:100], special=special)


class Bench:
    """A worker whose main thread is the test."""

    def __init__(self) -> None:
        self.tokenizer = Slow()
        self.worker = TextWorker(Pipe(io.BufferedReader(io.BytesIO()), io.BytesIO()))
        self.core = self.worker._start(Load("fake", "m.gguf", ROOM, "m"), FakeRunner(ROOM), self.tokenizer, None)

    def ask(self, name: str, text: str) -> None:
        sampling = Sampling(temperature=0.0)
        request = GenerateRequest(id=name, model="m", prompt=Text(text), sampling=sampling, max_tokens=2)
        self.worker._inbox.put(Generate(request))

    def waiting(self) -> set[str]:
        while not self.worker._inbox.empty():
            self.worker._receive(self.core)
        return {job.id.removesuffix("/0") for job in self.core.scheduler.waiting}

    def until_waiting(self, *names: str) -> None:
        deadline = time.monotonic() + 60
        while self.waiting() != set(names):
            assert time.monotonic() < deadline
            time.sleep(0.005)


def test_nobody_waits_for_another_ones_very_long_text() -> None:
    bench = Bench()
    bench.ask("long", LONG)
    bench.ask("short", "hi")
    bench.until_waiting("short")
    bench.tokenizer.go_on.set()
    bench.until_waiting("short", "long")


def test_a_prompt_whose_client_has_left_is_not_tokenised() -> None:
    bench = Bench()
    for name in ("first", "second", "third"):
        bench.ask(name, LONG)
    bench.worker._inbox.put(Cancel("second"))
    bench.waiting()
    bench.tokenizer.go_on.set()
    bench.until_waiting("first", "third")
    assert bench.tokenizer.seen.count(len(LONG)) == 2


def test_what_there_is_to_tokenise() -> None:
    messages = Messages((Message("system", "abc"), Message("user", "de")))
    assert [characters(prompt) for prompt in (messages, Text("abcd"), Tokens((1, 2)))] == [5, 4, 0]
