"""The scheduler under whatever may happen in whatever order, with one step in flight and with two."""

from __future__ import annotations

from fake_runner import FakeBehaviour
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from scheduling import Ahead, Bench, OneByOne, alone, placement, tokens

from edgellm.engine.job import Job
from edgellm.engine.limits import Limits


class SchedulerMachine(RuleBasedStateMachine):
    """Random arrivals, cancels, refusals, breaks in a small pool. Everyone ends once, nothing leaks, text is right."""

    behaviour = FakeBehaviour()
    bench_type: type[Bench] = OneByOne

    def __init__(self) -> None:
        super().__init__()
        self.bench = self.bench_type(
            placement(capacity=320, max_sequences=6), self.behaviour, limits=Limits(idle_cells=80, parked_bytes=1600)
        )
        self.jobs: dict[str, Job] = {}
        self.cancelled: set[str] = set()
        self.count = 0
        self.bench.guess()

    @rule(
        family=st.integers(0, 2),
        shared=st.integers(1, 120),
        own=st.integers(0, 60),
        answer=st.integers(1, 40),
        priority=st.integers(0, 1),
        key=st.sampled_from(["", "k"]),
    )
    def arrive(self, family: int, shared: int, own: int, answer: int, priority: int, key: str) -> None:
        name = f"j{self.count}"
        self.count += 1
        prompt = tokens(shared, 70 * family) + tokens(own, self.count)
        self.jobs[name] = self.bench.add(name, prompt, answer, priority=priority, key=key)

    @rule(steps=st.integers(1, 12))
    def work(self, steps: int) -> None:
        for _ in range(steps):
            self.bench.step()

    @precondition(lambda self: self.open())
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(self.open()))
        self.bench.scheduler.remove(self.jobs[name])
        self.cancelled.add(name)

    @rule()
    def refuse(self) -> None:
        self.bench.runner.refusals = 1

    @precondition(lambda self: self.bench.scheduler.active)
    @rule(data=st.data())
    def break_one(self, data: st.DataObject) -> None:
        job = data.draw(st.sampled_from(self.bench.scheduler.active))
        assert job.sequence is not None
        self.bench.runner.broken = {job.sequence}

    def open(self) -> list[str]:
        ended = self.bench.done.keys() | self.bench.broken.keys() | self.cancelled
        return [name for name in self.jobs if name not in ended]

    @invariant()
    def books_balance(self) -> None:
        scheduler = self.bench.scheduler
        assert self.bench.runner.used <= scheduler.cache.used <= 320
        assert scheduler.cache.parked_bytes <= 1600
        here = [job.id for job in scheduler.active + scheduler.waiting]
        assert sorted(here) == sorted(self.open())
        sequences = [job.sequence for job in scheduler.active]
        assert len(set(sequences)) == len(sequences)

    def teardown(self) -> None:
        self.bench.runner.broken = set()
        self.bench.runner.refusals = 0
        self.bench.run(5000)
        assert not self.open()
        for name, text in self.bench.done.items():
            job = self.jobs[name]
            assert text == alone(job.tokens[: job.prompt_length], job.max_tokens)
        cache = self.bench.scheduler.cache
        cache.let_go_all()
        assert self.bench.runner.used == cache.used == 0
        assert cache.free_sequences == 6


class OrderedMachine(SchedulerMachine):
    """The same where running sequences are laid out anew whenever another leaves."""

    behaviour = FakeBehaviour(keeps_order=True)


class AheadMachine(SchedulerMachine):
    """The same with two steps in flight, where nobody guesses, or guesses do not always pay."""

    bench_type = Ahead

    def __init__(self) -> None:
        super().__init__()
        self.bench.scheduler.speculator.enabled = False

    @rule(pays=st.booleans())
    def guess(self, pays: bool) -> None:
        self.bench.scheduler.speculator.enabled = pays

    def teardown(self) -> None:
        super().teardown()
        self.bench.scheduler.speculator.enabled = False
        for name in ("one", "other"):
            self.bench.add(name, tokens(30, len(name)), 9)
        self.bench.run()
        assert self.bench.ahead > 3
        assert self.bench.done["one"] == alone(tokens(30, 3), 9)


TestAhead = AheadMachine.TestCase
TestAhead.settings = settings(max_examples=25, stateful_step_count=25)
TestOrdered = OrderedMachine.TestCase
TestOrdered.settings = settings(max_examples=10, stateful_step_count=25)
TestScheduler = SchedulerMachine.TestCase
TestScheduler.settings = settings(max_examples=25, stateful_step_count=25)
