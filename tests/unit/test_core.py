"""EngineCore on the fake engine: from requests to events."""

from __future__ import annotations

from typing import Literal

import msgspec
import pytest
from fake_runner import FakeBehaviour, FakeRunner, FakeTokenizer

from edgellm.contracts.engine import Placement
from edgellm.contracts.events import (
    ChoiceDone,
    Event,
    Failed,
    Finished,
    Progress,
    ReasoningDelta,
    Slid,
    Started,
    TextDelta,
)
from edgellm.contracts.request import GenerateRequest, Sampling, Text
from edgellm.engine.core import EngineCore
from edgellm.engine.limits import Limits
from edgellm.engine.prompt import EncodedPrompt
from edgellm.engine.reasoning import Tags
from edgellm.errors import GenerationFailed, WorkerDied

ROOM = Placement(context=256, capacity=512, max_sequences=8, batch_tokens=64, threads=1, threads_batch=1)


@pytest.fixture(autouse=True, params=[1, 2])
def depth(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    """Steps in flight."""
    monkeypatch.setattr(Depth, "steps", request.param)
    return int(request.param)


class Depth:
    steps = 1


def core(behaviour: FakeBehaviour | None = None, limits: Limits | None = None) -> tuple[EngineCore, FakeRunner]:
    runner = FakeRunner(ROOM, msgspec.structs.replace(behaviour or FakeBehaviour(), depth=Depth.steps))
    made = EngineCore("fake", runner, FakeTokenizer(), limits=limits)
    made.warm_up()
    return made, runner


def request(name: str = "r", **changes: object) -> GenerateRequest:
    fields: dict[str, object] = {"max_tokens": 20, "sampling": Sampling(temperature=0.0)}
    return GenerateRequest(id=name, model="fake", prompt=Text("unused"), **(fields | changes))  # type: ignore[arg-type]


def run(made: EngineCore, *first: tuple[str, Event]) -> dict[str, list[Event]]:
    events: dict[str, list[Event]] = {}
    todo = list(first)
    for _ in range(2000):
        for name, event in todo:
            events.setdefault(name, []).append(event)
        if made.idle:
            return events
        todo = made.step()
    raise AssertionError("does not end")


def text(events: list[Event]) -> str:
    return "".join(event.text for event in events if isinstance(event, TextDelta))


def last(events: list[Event]) -> Finished:
    assert isinstance(events[-1], Finished)
    return events[-1]


def test_an_answer_from_start_to_finish() -> None:
    made, _ = core()
    events = run(made, *made.add(request(), list(range(10))))["r"]
    assert events[0] == Started(10, 0, 0)
    assert events[-2] == ChoiceDone("length")
    usage, timings = last(events).usage, last(events).timings
    assert (usage.prompt_tokens, usage.completion_tokens, usage.cached_tokens) == (10, 20, 0)
    assert len(text(events)) == 20
    assert timings.total_s == pytest.approx(timings.ttft_s + timings.decode_s)


def test_a_long_prefill_reports_progress() -> None:
    made, _ = core()
    events = run(made, *made.add(request(), [i % 200 for i in range(200)]))["r"]
    progress = [event.done for event in events if isinstance(event, Progress)]
    assert progress == sorted(progress)
    assert len(progress) == 3


def test_who_waits_is_told_how_many_are_ahead(monkeypatch: pytest.MonkeyPatch) -> None:
    made, _ = core()
    monkeypatch.setattr("edgellm.engine.core.TOLD_S", 0.0)
    prompt = [i % 200 for i in range(200)]  # the second finds the first's computed, and waits for that
    events = run(made, *made.add(request("a"), prompt), *made.add(request("b"), prompt))
    queued = [event for event in events["b"] if isinstance(event, Progress) and event.stage == "queue"]
    assert queued
    assert {event.total for event in queued} == {1.0}
    assert events["b"].index(queued[-1]) < next(n for n, event in enumerate(events["b"]) if isinstance(event, Started))
    assert not [event for event in events["a"] if isinstance(event, Progress) and event.stage == "queue"]


def test_the_models_own_end_is_not_text() -> None:
    made, _ = core(FakeBehaviour(end_at=15))
    events = run(made, *made.add(request(), list(range(10))))["r"]
    assert events[-2] == ChoiceDone("stop")
    assert len(text(events)) == 5
    assert last(events).usage.completion_tokens == 6


def test_without_a_limit_the_context_is_the_limit() -> None:
    made, _ = core()
    events = run(made, *made.add(request(max_tokens=None), list(range(10))))["r"]
    assert last(events).usage.completion_tokens == ROOM.context - 10


def test_turns_that_were_left_out_are_spoken_of() -> None:
    made, _ = core()
    events = run(made, *made.add(request(), EncodedPrompt(list(range(10)), dropped=123)))["r"]
    assert events[:2] == [Started(10, 0, 0), Slid(123)]


def test_thoughts_are_events_of_their_own() -> None:
    made, _ = core()
    whole = text(run(made, *made.add(request("a"), list(range(10))))["a"])
    tags = Tags(whole[0], whole[8:10])
    events = run(made, *made.add(request("b"), EncodedPrompt(list(range(10)), tags)))["b"]
    thoughts = "".join(event.text for event in events if isinstance(event, ReasoningDelta))
    assert (thoughts, text(events)) == (whole[1:8].strip(), whole[10:].lstrip())


@pytest.mark.parametrize(("tokens", "code"), [(256, "context_length_exceeded"), (0, "invalid_request")])
def test_what_cannot_be_answered_is_refused_at_once(tokens: int, code: str) -> None:
    made, _ = core()
    ((name, event),) = made.add(request(), [1] * tokens)
    assert name == "r"
    assert isinstance(event, Failed)
    assert event.error.code == code
    assert made.idle


def test_a_prompt_that_does_not_fit_names_both_sizes() -> None:
    made, _ = core()
    ((_, event),) = made.add(request(), [1] * 1000)
    assert isinstance(event, Failed)
    assert "1,000" in event.error.message
    assert "256" in event.error.message


@pytest.mark.parametrize(
    ("trained", "way_out"),
    [
        (None, "shorten it, raise the context (--context) if the model was trained for more, or pick another model"),
        (4096, "shorten it, or raise the context (--context), up to the 4,096 it was trained for"),
        (256, "shorten it, or pick a model with a longer context: it was trained for no more"),
    ],
)
def test_a_longer_context_is_proposed_only_where_the_model_was_trained_for_one(
    trained: int | None, way_out: str
) -> None:
    made = EngineCore("fake", FakeRunner(ROOM), FakeTokenizer(), trained=trained)
    ((_, event),) = made.add(request(), [1] * 1000)
    assert isinstance(event, Failed)
    assert event.error.hint == way_out


@pytest.mark.parametrize("limits", [Limits(queue_requests=2), Limits(queue_tokens=25)])
def test_case_19_a_full_queue_refuses_with_a_time_to_come_back(limits: Limits) -> None:
    made, _ = core(limits=limits)
    for name in ("a", "b"):
        assert made.add(request(name), [1] * 10) == []
    ((_, event),) = made.add(request("c"), [1] * 10)
    assert isinstance(event, Failed)
    assert event.error.code == "overloaded"
    assert event.error.retriable
    assert event.error.retry_after is not None
    assert event.error.retry_after >= 1.0


def test_a_prompt_longer_than_the_queue_is_taken_where_nothing_waits() -> None:
    made, _ = core(limits=Limits(queue_tokens=25))
    assert made.add(request("a"), [1] * 40) == []
    ((_, event),) = made.add(request("b"), [1] * 40)
    assert isinstance(event, Failed)
    assert event.error.code == "overloaded"


def test_a_prompt_that_never_fits_is_not_to_be_tried_again_however_full_the_queue() -> None:
    made, _ = core(limits=Limits(queue_requests=1, queue_tokens=25))
    made.add(request("a"), [1] * 10)
    ((_, event),) = made.add(request("b"), [1] * 1000)
    assert isinstance(event, Failed)
    assert (event.error.code, event.error.retriable) == ("context_length_exceeded", False)


def test_cancelling_ends_it_silently_and_frees_its_room() -> None:
    made, runner = core()
    made.add(request("a"), list(range(100)))
    made.step()
    made.cancel("a")
    made.cancel("a")
    made.cancel("never heard of")
    assert made.idle
    assert made.step() == []
    events = run(made, *made.add(request("b"), list(range(100))))["b"]
    assert last(events).usage.cached_tokens > 0, "what was computed may serve the next"
    assert runner.used <= 100 + 20


def test_case_22_numbers_that_are_not_finite_fail_that_request_only() -> None:
    made, runner = core()
    made.add(request("a"), list(range(10)))
    made.add(request("b"), list(range(50, 60)))
    runner.broken = {0}
    events = run(made)
    failed = [name for name in events if isinstance(events[name][-1], Failed)]
    assert len(failed) == 1
    assert sum(isinstance(found[-1], Finished) for found in events.values()) == 1


def test_giving_up_fails_everyone_once() -> None:
    made, _ = core()
    made.add(request("a"), list(range(10)))
    made.add(request("b"), list(range(10)))
    made.step()
    failures = made.fail_all(WorkerDied("the engine failed"))
    assert sorted(name for name, _ in failures) == ["a", "b"]
    assert made.idle
    assert made.fail_all(WorkerDied("again")) == []


@pytest.mark.parametrize("where", ["submit", "collect"])
@pytest.mark.parametrize("steps", [0, 1, 4])
def test_after_an_engine_failure_nothing_of_the_steps_in_flight_is_kept(
    where: Literal["submit", "collect"], steps: int
) -> None:
    """A step that fails may have run for some of its rows: what their sequences hold is unknown."""
    made, runner = core()
    for name in ("a", "b"):
        made.add(request(name, max_tokens=30), [(i + len(name)) % 200 for i in range(50)])
    for _ in range(steps):
        made.step()
    runner.failing = where
    with pytest.raises(GenerationFailed):
        made.step()
    failed = made.fail_all(GenerationFailed("half of it ran"))
    assert sorted(name for name, _ in failed) == ["a", "b"]
    assert made.idle
    assert made.pipeline.step_started == 0.0, "or the daemon would take it for a step that never ends"
    assert runner.used == made.scheduler.cache.used == 0
    events = run(made, *made.add(request("c", max_tokens=5), [(i + 1) % 200 for i in range(50)]))["c"]
    assert last(events).usage.cached_tokens == 0
    assert runner.used == made.scheduler.cache.used


def choices(events: list[Event], count: int) -> list[str]:
    return ["".join(e.text for e in events if isinstance(e, TextDelta) and e.choice == n) for n in range(count)]


def test_several_choices_come_from_one_prefill_and_differ() -> None:
    made, runner = core()
    runner.steps.clear()
    warm = Sampling(temperature=1.0, seed=5)
    events = run(made, *made.add(request(n=3, sampling=warm), list(range(100))))["r"]
    texts = choices(events, 3)
    assert [len(one) for one in texts] == [20, 20, 20]
    assert len(set(texts)) == 3
    assert [e for e in events if isinstance(e, ChoiceDone)] == [ChoiceDone("length", n) for n in range(3)]
    assert last(events).usage.completion_tokens == 60
    assert last(events).usage.prompt_tokens == 100
    prefilled = sum(len(row.tokens) for step in runner.steps for row in step) - 57
    assert prefilled == 99 + 3, "the last token of the prompt gives each its first logits"


def test_one_choice_that_breaks_fails_its_request_once() -> None:
    made, runner = core()
    made.add(request(n=3), list(range(60)))
    for _ in range(4):
        made.step()
    runner.broken = {made.scheduler.active[1].sequence or 0}
    events = run(made)["r"]
    assert [type(event) for event in events if not isinstance(event, TextDelta)] == [Failed]
    assert runner.used == made.scheduler.cache.used


def test_text_that_repeats_is_guessed_and_the_answer_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    loop = FakeBehaviour(window=2)  # what follows depends on two tokens: soon it goes round in circles
    made, _ = core(loop)
    monkeypatch.setattr(made.scheduler.decode_costs, "predict", lambda tokens, pairs=0.0: 0.001)  # rows are free
    guessed = run(made, *made.add(request(max_tokens=150), list(range(10))))["r"]
    made, _ = core(loop)
    plain = run(made, *made.add(request(max_tokens=150, drafts=False), list(range(10))))["r"]
    assert text(guessed) == text(plain)
    assert last(guessed).timings.accepted > 20
    assert last(guessed).timings.drafted >= last(guessed).timings.accepted
    assert last(plain).timings.drafted == 0


@pytest.mark.parametrize("behaviour", [FakeBehaviour(), FakeBehaviour(window=12), FakeBehaviour(recurrent=True)])
def test_a_context_slides_where_the_request_allows_it_and_the_answer_says_so(behaviour: FakeBehaviour) -> None:
    made, runner = core(behaviour)
    prompt = EncodedPrompt(list(range(100)), keep=20)
    events = run(made, *made.add(request(sliding=True, max_tokens=400, n=2), prompt))["r"]
    assert [len(one) for one in choices(events, 2)] == [400, 400]
    slid = [event for event in events if isinstance(event, Slid) and event.choice == 0]
    assert [event.dropped for event in slid] == [118, 118, 118]
    assert made.scheduler.cache.used == runner.used


def test_what_follows_a_slide_is_what_follows_the_kept_tokens() -> None:
    made, _ = core()
    prompt = EncodedPrompt(list(range(97, 122)) * 4, keep=20)
    whole = text(run(made, *made.add(request(sliding=True, max_tokens=200), prompt))["r"])
    tokens = prompt.tokens + list(whole[:156].encode())
    kept = tokens[:20] + tokens[20 + 118 :]
    made, _ = core()
    assert text(run(made, *made.add(request(max_tokens=44), kept))["r"]) == whole[156:]


class Clock:
    """Goes on when it is told to."""

    def __init__(self) -> None:
        self.now = 100.0

    def monotonic(self) -> float:
        return self.now

    def pass_by(self, seconds: float) -> None:
        self.now += seconds


@pytest.mark.parametrize("field", ["batch_tokens", "context", "capacity"])
@pytest.mark.parametrize("most", [1, 2, 5])
def test_warm_up_keeps_to_what_the_runner_takes(field: str, most: int) -> None:
    sizes = {"context": 64, "capacity": 64, field: most}
    room = msgspec.structs.replace(ROOM, **(sizes | {"context": min(sizes["context"], sizes["capacity"])}))
    runner = FakeRunner(room)
    runner._info = msgspec.structs.replace(runner.info, draft_tokens=15, max_outputs=32)
    EngineCore("fake", runner, FakeTokenizer()).warm_up()
    assert runner.steps


@pytest.mark.parametrize(("row_s", "sizes"), [(0.0156, [1, 1, 4, 8, 16]), (0.02, [1, 1, 4, 8])])
def test_warm_up_measures_a_step_of_every_size_that_is_short_enough(
    row_s: float, sizes: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock()
    monkeypatch.setattr("edgellm.engine.warmup.time", clock)
    runner = FakeRunner(ROOM, FakeBehaviour(on_step=lambda rows: clock.pass_by(row_s * (1 + len(rows[0].draft)))))
    runner._info = msgspec.structs.replace(runner.info, draft_tokens=15, max_outputs=32)
    EngineCore("fake", runner, FakeTokenizer()).warm_up()
    assert [1 + len(step[0].draft) for step in runner.steps] == sizes
    assert runner.used == 0
