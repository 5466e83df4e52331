"""Two steps in flight: what is planned ahead, what is not, and that nobody can tell from the text."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

import pytest
from fake_runner import FakeBehaviour, FakeRunner, FakeTokenizer
from hypothesis import given, settings
from hypothesis import strategies as st
from scheduling import Ahead, OneByOne, alone, placement, tokens

from edgellm.contracts.engine import Placement
from edgellm.contracts.events import ChoiceDone, Event, Failed, Finished, Slid, TextDelta
from edgellm.contracts.request import GenerateRequest, Sampling, Text
from edgellm.contracts.runner import PREVIOUS, Result, Row
from edgellm.engine.core import EngineCore
from edgellm.engine.draft_model import DraftModel
from edgellm.engine.job import Job
from edgellm.engine.limits import Limits
from edgellm.engine.lookup import PromptLookup
from edgellm.engine.prompt import EncodedPrompt

ROOM = Placement(context=128, capacity=400, max_sequences=6, batch_tokens=64, threads=1, threads_batch=1)
GREEDY = Sampling(temperature=0.0)


def core(depth: int = 2, window: int = 0, limits: Limits | None = None) -> EngineCore:
    runner = FakeRunner(ROOM, FakeBehaviour(depth=depth, window=window))
    return EngineCore("fake", runner, FakeTokenizer(), limits=limits or Limits(drafts="off"))


def steps(made: EngineCore) -> list[tuple[Row, ...]]:
    runner = made._runner
    assert isinstance(runner, FakeRunner)
    return runner.steps


def ahead(step: Sequence[Row]) -> bool:
    return any(row.tokens == (PREVIOUS,) for row in step)


def request(name: str, **fields: object) -> GenerateRequest:
    told: dict[str, object] = {"max_tokens": 20, "sampling": GREEDY}
    return GenerateRequest(id=name, model="fake", prompt=Text("unused"), **(told | fields))  # type: ignore[arg-type]


def run(made: EngineCore) -> dict[str, list[Event]]:
    events: dict[str, list[Event]] = {}
    while not made.idle:
        for name, event in made.step():
            events.setdefault(name, []).append(event)
    return events


def text(events: list[Event]) -> str:
    return "".join(event.text for event in events if isinstance(event, TextDelta))


# -- what is planned ahead -----------------------------------------------------------------------------


def test_every_token_after_the_first_is_planned_ahead_and_none_too_many() -> None:
    made = core()
    made.add(request("a"), list(range(10)))
    made.add(request("b", max_tokens=7), list(range(50, 60)))
    run(made)
    assert [ahead(step) for step in steps(made)] == [False] + [True] * 19
    assert [len(step) for step in steps(made)] == [2] * 7 + [1] * 13, "no row for who certainly has its last token"


@pytest.mark.parametrize(
    "sampling",
    [
        Sampling(temperature=0.0, repeat_penalty=1.1),
        Sampling(temperature=0.7, dry_multiplier=0.5, seed=1),
        Sampling(mirostat=2, seed=1),
    ],
)
def test_samplers_that_need_the_token_before_wait_for_it(sampling: Sampling) -> None:
    made = core()
    made.add(request("a", sampling=sampling), list(range(10)))
    made.add(request("b"), list(range(50, 60)))
    run(made)
    assert not any(ahead(step) for step in steps(made))


def test_who_waits_for_room_does_not_hold_it_up_and_who_can_be_admitted_is() -> None:
    made = core(limits=Limits(drafts="off", max_running=2))
    for number in range(2):
        made.add(request(str(number), max_tokens=30), list(range(10 * number, 10 * number + 10)))
    for _ in range(3):
        made.step()
    made.add(request("third"), list(range(80, 90)))
    before = len(steps(made))
    for _ in range(6):
        made.step()
    assert [ahead(step) for step in steps(made)[before:]].count(False) == 1, "one look whether it can be admitted"
    assert len(made.scheduler.waiting) == 1
    made.cancel("0")
    for _ in range(3):
        made.step()
    assert not made.scheduler.waiting


def test_who_waits_behind_one_that_leaves_is_admitted_then() -> None:
    made = core()
    for number in range(3):
        made.add(request(str(number), max_tokens=40), [number] * 80)
    for _ in range(8):
        made.step()
    made.add(request("large", max_tokens=20), [7] * 100)
    made.add(request("small", max_tokens=5, priority=1), [8] * 4)
    for _ in range(4):
        made.step()
    assert len(made.scheduler.waiting) == 2, "none overtakes one that waits for room"
    made.cancel("large")
    for _ in range(3):
        made.step()
    assert not made.scheduler.waiting


@pytest.mark.parametrize("window", [2, 3])
def test_guesses_that_pay_come_before_steps_ahead(window: int) -> None:
    """A text that goes round in circles, where rows are free: a guess is made one step later at most."""
    found = {}
    for kind in (OneByOne, Ahead):
        bench = kind(behaviour=FakeBehaviour(window=window))
        bench.guess()
        bench.scheduler.speculator.proposer = PromptLookup
        job = bench.add("a", tokens(10), 180)
        bench.run()
        found[kind] = (len(bench.runner.steps), job.accepted)
        assert (bench.ahead > 5) is (kind is Ahead)
    assert found[OneByOne][1] > 90
    assert found[Ahead][1] >= found[OneByOne][1] - 3
    assert found[Ahead][0] <= found[OneByOne][0] + 3


def test_a_draft_model_is_waited_for() -> None:
    bench = Ahead()
    bench.scheduler.speculator.model = DraftModel(FakeRunner(placement()))
    bench.add("a", tokens(10), 20)
    bench.run()
    assert bench.ahead == 0


def test_a_stop_string_is_noticed_one_step_later_and_its_row_is_dropped() -> None:
    made = core()
    made.add(request("a"), list(range(10)))
    whole = text(run(made)["a"])
    made = core()
    made.add(request("a", stop=(whole[7:10],)), list(range(10)))
    events = run(made)["a"]
    assert ChoiceDone("stop") in events
    assert text(events) == whole[: whole.index(whole[7:10])]
    assert len(steps(made)) == whole.index(whole[7:10]) + 3 + 1
    # What the dropped row computed is the answer's own last token: the next turn starts from it.
    turn = [*range(10), *whole[: whole.index(whole[7:10]) + 3].encode()]
    made.add(request("b"), [*turn, 200])
    found = run(made)["b"]
    assert isinstance(found[-1], Finished)
    assert found[-1].usage.cached_tokens == len(turn)


# -- who leaves while a step runs ----------------------------------------------------------------------


def running(*names: str) -> tuple[Ahead, list[Job]]:
    """A bench with a step in flight that carries all of them."""
    bench = Ahead(limits=Limits(idle_cells=500))
    jobs = [bench.add(name, tokens(30, 40 * number), 20) for number, name in enumerate(names)]
    for _ in range(3):
        bench.step()
    assert [len(step.rows) for step, _ in bench.flying] == [len(names)]
    return bench, jobs


def test_what_is_drawn_for_one_who_left_is_nobodys_and_what_was_computed_is_kept() -> None:
    bench, (job, _) = running("a", "b")
    text = list(job.tokens)
    bench.scheduler.remove(job)
    assert bench.scheduler.cache.free_sequences == 8 - 2, "its sequence is in use"
    bench.run()
    assert job.tokens == text
    assert bench.scheduler.cache.held([*text, 7], "") == len(text)


def test_kv_of_numbers_that_are_not_finite_is_not_kept_for_one_who_left_either() -> None:
    bench, (job, _) = running("a", "b")
    assert job.sequence is not None
    bench.runner.broken.add(job.sequence)
    bench.step()
    assert not bench.runner.broken, "the step in flight has it"
    bench.scheduler.remove(job)
    bench.run()
    assert bench.broken == {}
    assert bench.scheduler.cache.held(tokens(30), "") == 0


def test_who_left_before_either_of_two_steps_ended_is_there_until_both_have() -> None:
    bench, (job, _) = running("a", "b")
    ahead = bench.scheduler.plan_ahead()
    assert ahead is not None
    bench.submit(ahead)
    bench.scheduler.remove(job)
    for left in (True, False):
        step, ticket = bench.flying.popleft()
        bench.scheduler.commit(step, bench.runner.collect(ticket), bench.now, 0.001)
        assert (job.sequence is not None) is left
    bench.run()


def test_a_step_without_room_is_followed_by_no_more_than_the_one_in_flight() -> None:
    bench, _ = running("a", "b")
    bench.runner.refusals = 1
    before = len(bench.runner.steps)
    for _ in range(4):
        bench.step()
    refused = [step for step in bench.runner.steps[before:] if step[0].tokens == (PREVIOUS,)][:2]
    assert not ahead(bench.runner.steps[before + 2]), "what was refused runs again, from what is known"
    assert len(refused) == 2
    bench.run()
    assert bench.done == {"a": alone(tokens(30), 20), "b": alone(tokens(30, 40), 20)}


# -- what is learned -----------------------------------------------------------------------------------


class Device(FakeRunner):
    """Takes its steps one after the other, `step_s` seconds each, while the host goes on; by a clock of its own."""

    step_s = 0.02

    def __init__(self) -> None:
        super().__init__(ROOM, FakeBehaviour(depth=2))
        self.now = 100.0
        self.free_at = 0.0
        self.ends: deque[float] = deque()

    def submit(self, rows: Sequence[Row]) -> object:
        self.free_at = max(self.now, self.free_at) + self.step_s
        self.ends.append(self.free_at)
        return super().submit(rows)

    def collect(self, ticket: object) -> list[Result]:
        self.now = max(self.now, self.ends.popleft())
        return super().collect(ticket)


def test_the_host_works_while_the_device_does_and_steps_cost_what_the_device_took(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    device = Device()
    monkeypatch.setattr(time, "monotonic", lambda: device.now)
    made = EngineCore("fake", device, FakeTokenizer(), limits=Limits(drafts="off"))
    made.add(request("a", max_tokens=25), list(range(10)))
    made.step()
    began, shown = device.now, made.pipeline.step_started
    for _ in range(20):
        assert made.pipeline.step_started > 0, "the next is running already"
        device.now += 0.01  # text is made meanwhile
        made.step()
    assert device.now - began == pytest.approx(20 * device.step_s)
    assert made.pipeline.step_started > shown
    assert made.scheduler.costs.predict(1) == pytest.approx(device.step_s, rel=0.01)  # but for attention
    run(made)
    assert made.pipeline.step_started == 0
    assert made.pipeline.steps == 25


# -- nobody can tell -----------------------------------------------------------------------------------


class Ask(NamedTuple):
    """A request some steps after the one before, and when it is cancelled, if it is."""

    prompt: int
    shared: bool
    sampling: Sampling
    tokens: int
    wait: int
    choices: int
    stop: str
    sliding: bool
    priority: int
    cancel: int | None


SAMPLINGS = [
    GREEDY,
    Sampling(temperature=1.0, seed=3),
    Sampling(temperature=1.0, seed=3, top_k=5, min_p=0.05),
    Sampling(temperature=0.0, repeat_penalty=1.2),
    Sampling(mirostat=2, seed=9),
]
ASKS = st.builds(
    Ask,
    st.integers(1, 90),
    st.booleans(),
    st.sampled_from(SAMPLINGS),
    st.integers(1, 40),
    st.integers(0, 9),
    st.sampled_from([1, 1, 1, 2]),
    st.sampled_from(["", "", "e", "th"]),
    st.booleans(),
    st.integers(0, 1),
    st.sampled_from([None, None, None, 0, 3, 9]),
)


def prompt_of(ask: Ask) -> EncodedPrompt:
    start = 0 if ask.shared else ask.prompt
    return EncodedPrompt([(start + i) % 250 for i in range(ask.prompt)], keep=min(8, ask.prompt))


def request_of(name: str, ask: Ask) -> GenerateRequest:
    return request(
        name,
        sampling=ask.sampling,
        max_tokens=(3 if ask.sliding else 1) * ask.tokens,
        n=ask.choices,
        stop=(ask.stop,) if ask.stop else (),
        sliding=ask.sliding,
        priority=ask.priority,
    )


def said(events: list[Event]) -> list[Event]:
    """What a client sees, but for the times, and where text was cut into pieces."""
    texts = ["".join(e.text for e in events if isinstance(e, TextDelta) and e.choice == n) for n in range(2)]
    ends = [(e.choice, e.reason) for e in events if isinstance(e, ChoiceDone)]
    slid = [e for e in events if isinstance(e, Slid)]
    (last,) = (e.usage.completion_tokens for e in events if isinstance(e, Finished))
    return [*texts, sorted(ends), slid, last]  # type: ignore[list-item]


def crowd(made: EngineCore, asks: list[Ask]) -> dict[str, list[Event]]:
    events: dict[str, list[Event]] = {}
    cancels: dict[str, int] = {}

    def step() -> None:
        for name, event in made.step():
            events.setdefault(name, []).append(event)
        for name in list(cancels):
            cancels[name] -= 1
            if cancels[name] < 0:
                del cancels[name]
                made.cancel(name)

    for number, ask in enumerate(asks):
        for _ in range(ask.wait):
            step()
        assert made.add(request_of(str(number), ask), prompt_of(ask)) == []
        if ask.cancel is not None:
            cancels[str(number)] = ask.cancel
    for _ in range(3000):
        if made.idle:
            return events
        step()
    raise AssertionError("does not end")


@settings(max_examples=30)
@given(
    st.lists(ASKS, min_size=1, max_size=7),
    st.sampled_from([0, 16]),
    st.sampled_from(["off", "auto"]),
    st.integers(0, 2),
)
def test_text_is_the_same_to_the_byte(asks: list[Ask], window: int, drafts: str, refusals: int) -> None:
    limits = Limits(drafts=drafts, parked_bytes=2000, max_running=5)  # type: ignore[arg-type]
    made = core(2, window, limits)
    made.scheduler.decode_costs.predict = lambda tokens, pairs=0.0: 0.001  # type: ignore[method-assign]  # guesses pay
    runner = made._runner
    assert isinstance(runner, FakeRunner)
    runner.refusals = refusals
    events = crowd(made, asks)
    for number, ask in enumerate(asks):
        found = events.get(str(number), [])
        ends = [event for event in found if isinstance(event, Finished | Failed)]
        assert len(ends) == 1 if ask.cancel is None else len(ends) <= 1
        assert not ends or found[-1] is ends[0]
        if ends and isinstance(ends[0], Finished):
            alone = crowd(core(1, window), [ask._replace(cancel=None, wait=0)])
            assert said(found) == said(alone["0"])
    cache = made.scheduler.cache
    cache.let_go_all()
    assert runner.used == cache.used == 0
    assert cache.free_sequences == ROOM.max_sequences
