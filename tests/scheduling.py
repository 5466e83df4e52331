"""A scheduler on the fake runner, without a core: for tests of what runs when."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Sequence

import msgspec
from fake_runner import FakeBehaviour, FakeRunner

from edgellm.contracts.engine import Placement
from edgellm.contracts.runner import Row, SampleSpec
from edgellm.engine.costs import StepCosts
from edgellm.engine.job import Job
from edgellm.engine.limits import Limits
from edgellm.engine.scheduler import Scheduler
from edgellm.engine.step import Broken, Drawn, Step

GREEDY = SampleSpec(temperature=0.0, top_k=0, top_p=1.0, seed=0)


SMALL = Placement(context=256, capacity=512, max_sequences=8, batch_tokens=64, threads=1, threads_batch=1)


def placement(**changes: int) -> Placement:
    return msgspec.structs.replace(SMALL, **changes)


class Bench:
    """A scheduler on a fake runner with a clock of its own: every step takes `tokens` milliseconds."""

    depth = 1  # steps in flight

    def __init__(
        self,
        where: Placement | None = None,
        behaviour: FakeBehaviour | None = None,
        limits: Limits | None = None,
    ) -> None:
        behaviour = msgspec.structs.replace(behaviour or FakeBehaviour(), depth=self.depth)
        self.runner = FakeRunner(where or placement(), behaviour)
        costs = StepCosts()
        for tokens in (1, 8, 64, 512):
            costs.observe(tokens, tokens / 1000)
        self.scheduler = Scheduler(self.runner.info, self.runner, limits or Limits(), costs)
        self.now = 0.0
        self.guessing = False
        self.done: dict[str, list[int]] = {}
        self.broken: dict[str, str] = {}
        self.order: list[str] = []  # of first tokens
        self.flying: deque[tuple[Step, object]] = deque()
        self.ahead = 0  # steps submitted while another was in flight

    def add(self, name: str, prompt: Sequence[int], count: int, **options: object) -> Job:
        job = Job(name, prompt, GREEDY, count, arrived=self.now, **options)  # type: ignore[arg-type]
        self.scheduler.add(job)
        return job

    def step(self) -> bool:
        if not self.flying:
            step = self.scheduler.plan(self.now)
            if step is None:
                return False
            self.submit(step)
        if (ahead := self.scheduler.plan_ahead()) is not None:
            self.ahead += 1
            self.submit(ahead)
        step, ticket = self.flying.popleft()
        results = self.runner.collect(ticket)
        self.now += step.tokens / 1000
        for outcome in self.scheduler.commit(step, results, self.now, self.seconds(step.tokens)):
            if outcome.job not in self.scheduler.active:
                continue  # it was done before its last guess
            if isinstance(outcome, Broken):
                self.broken[outcome.job.id] = outcome.reason
                self.scheduler.remove(outcome.job, keep=False)
            else:
                self.take(outcome)
        if not self.runner.refused:
            assert self.scheduler.cache.used == self.runner.used, "the ledger must balance"
        return True

    def submit(self, step: Step) -> None:
        self.flying.append((step, self.runner.submit(step.rows)))

    def seconds(self, count: int) -> float:
        return 0.001 if self.guessing else count / 1000

    def take(self, drawn: Drawn) -> None:
        job = drawn.job
        if job.generated == 1:
            self.order.append(job.id)
        if job.generated == job.max_tokens:
            self.done[job.id] = job.tokens[job.prompt_length :]
            self.scheduler.remove(job)

    def guess(self) -> None:
        """Jobs guess ahead from now on, sometimes rightly; rows are free, so that it always pays."""
        self.guessing = True
        for count in (1, 16):
            self.scheduler.decode_costs.observe(count, self.seconds(count))
        self.scheduler.speculator.proposer = Guesser

    def run(self, limit: int = 2000) -> None:
        for _ in range(limit):
            if not self.step():
                assert self.scheduler.idle, "jobs are left and nothing runs"
                return
        raise AssertionError("does not end")

    @property
    def prefilled(self) -> int:
        return sum(len(row.tokens) for step in self.runner.steps for row in step if len(row.tokens) > 1)


class Guesser:
    """Knows the answer, and now and then pretends not to."""

    def __init__(self) -> None:
        self.numbers = random.Random(5)

    def propose(self, tokens: list[int], most: int) -> tuple[list[int], int]:
        if most <= 0:
            return [], 0
        runner = FakeRunner(placement(max_sequences=1, context=512, batch_tokens=512))
        guess: list[int] = []
        for _ in range(most):
            (result,) = runner.collect(runner.submit([Row(0, 0, [*tokens, *guess], GREEDY)]))
            runner.free(0)
            guess.append(result.tokens[0] if self.numbers.random() < 0.8 else 33)
        return guess, 20


class OneByOne(Bench):
    """A bench whose steps are collected before the next is planned, whatever is being tested."""

    depth = 1


class Ahead(Bench):
    """The opposite."""

    depth = 2


def alone(prompt: Sequence[int], count: int, behaviour: FakeBehaviour | None = None) -> list[int]:
    """What the model answers with nobody else about and nothing cached."""
    bench = OneByOne(placement(max_sequences=1, context=512), behaviour)
    bench.add("x", prompt, count)
    bench.run()
    return bench.done["x"]


def tokens(count: int, start: int = 0) -> list[int]:
    return [(start + i) % 251 for i in range(count)]
