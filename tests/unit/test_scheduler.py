"""The scheduler on the fake runner, whose text is a hash of the KV: whatever goes wrong with a sequence shows in it."""

from __future__ import annotations

import pytest
from fake_runner import FakeBehaviour
from scheduling import Bench, alone, placement, tokens

from edgellm.engine.limits import Limits

ONE_BY_ONE = pytest.mark.parametrize("depth", [1], indirect=True)  # where single steps are looked at


@pytest.fixture(autouse=True, params=[1, 2])
def depth(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.setattr(Bench, "depth", request.param)
    return int(request.param)


def test_a_long_prompt_goes_in_chunks_and_the_answer_is_right() -> None:
    bench = Bench()
    bench.add("a", tokens(200), 5)
    bench.run()
    assert bench.done["a"] == alone(tokens(200), 5)
    assert [len(step[0].tokens) for step in bench.runner.steps[:4]] == [64, 64, 64, 8]


def test_decoding_jobs_run_in_every_step_while_a_prompt_is_prefilled() -> None:
    bench = Bench()
    bench.add("reader", tokens(10), 30)
    bench.step()
    bench.add("long", tokens(250, 7), 2)
    bench.run()
    assert all(any(len(row.tokens) == 1 for row in step) for step in bench.runner.steps[1:6])
    assert bench.done["reader"] == alone(tokens(10), 30)


@ONE_BY_ONE
def test_steps_stay_within_their_time() -> None:
    """At a millisecond per token: 100 tokens while someone reads, 150 otherwise, never less than 64.

    A little less at first, when attention is guessed at: it costs nothing here.
    """
    bench = Bench(
        placement(batch_tokens=512, capacity=4096, context=1024),
        limits=Limits(step_s=0.15, decode_step_s=0.1),
    )
    bench.add("alone", tokens(600), 20)
    bench.step()
    assert 140 < sum(len(row.tokens) for row in bench.runner.steps[-1]) <= 150
    for _ in range(4):
        bench.step()
    bench.add("second", tokens(600, 9), 2)
    bench.step()
    assert sum(len(row.tokens) for row in bench.runner.steps[-1]) == 100
    tight = Bench(placement(batch_tokens=512, capacity=4096, context=1024), limits=Limits(step_s=0.01))
    tight.add("a", tokens(600), 2)
    tight.step()
    assert sum(len(row.tokens) for row in tight.runner.steps[-1]) == 64


@ONE_BY_ONE
def test_steps_over_a_long_context_are_whole_tiles() -> None:
    limits = Limits(step_s=0.15, decode_step_s=0.01)
    bench = Bench(placement(batch_tokens=512, capacity=4096, context=2048), FakeBehaviour(tile=64), limits)
    for i in range(3):
        bench.add(f"reader{i}", tokens(10, 40 * i), 200)
    for _ in range(4):
        bench.step()
    bench.add("long", tokens(1500, 9), 2)
    sizes = []
    for _ in range(14):
        bench.step()
        sizes.append(sum(len(row.tokens) for row in bench.runner.steps[-1]))
    assert sizes[0] == 3 + 64, "a whole chunk beside the readers while that is cheap"
    assert sizes[-1] == 64, "later the readers' rows are part of the tile"


def test_short_prompts_overtake_long_ones_but_waiting_counts() -> None:
    bench = Bench(placement(capacity=4096, context=1024))
    bench.add("long", tokens(900), 2)
    bench.step()
    bench.add("short", tokens(70, 3), 2)
    bench.run()
    assert bench.order == ["short", "long"]
    # A stream of short prompts cannot hold up a long one for longer than its own work takes.
    bench = Bench(placement(capacity=8192, context=1024))
    bench.add("long", tokens(900), 2)
    for i in range(60):
        bench.add(f"short{i}", tokens(60, i + 3), 2)
        bench.step()
    bench.run()
    assert bench.order.index("long") < 59


def test_priority_comes_before_arrival_and_takes_room_from_lower_ones() -> None:
    bench = Bench(placement(capacity=290))
    low = [bench.add(f"low{i}", tokens(60, 10 * i + 1), 30, priority=1) for i in range(3)]
    for _ in range(5):
        bench.step()
    bench.add("high", tokens(60, 99), 20, priority=0)
    bench.step()
    bench.step()  # the first may have been on its way
    assert any(job.sequence is None for job in low)
    bench.run()
    assert [job.id for job in low if job.suspensions] == ["low2"]
    for i in range(3):
        assert bench.done[f"low{i}"] == alone(tokens(60, 10 * i + 1), 30)
    assert bench.done["high"] == alone(tokens(60, 99), 20)


def test_running_out_of_room_suspends_the_latest_and_changes_no_text() -> None:
    bench = Bench(placement(capacity=300, max_sequences=8))
    jobs = [bench.add(f"j{i}", tokens(20, 30 * i), 100) for i in range(4)]
    bench.run()
    assert sum(job.suspensions for job in jobs) >= 1
    for i in range(4):
        assert bench.done[f"j{i}"] == alone(tokens(20, 30 * i), 100)


def test_one_job_may_fill_the_whole_pool() -> None:
    bench = Bench(placement(context=256, capacity=256))
    bench.add("a", tokens(200), 56)
    bench.run()
    assert len(bench.done["a"]) == 56


def test_the_runners_word_on_room_counts() -> None:
    bench = Bench()
    bench.runner.refusals = 2
    bench.add("a", tokens(20), 5)
    bench.add("b", tokens(20, 50), 5)
    bench.run()
    assert bench.done == {"a": alone(tokens(20), 5), "b": alone(tokens(20, 50), 5)}
    bench.runner.refusals = 99
    bench.add("c", tokens(20, 80), 5)
    bench.run()
    assert bench.broken == {"c": "no_room"}


def test_case_22_nan_breaks_one_job_and_its_kv_is_not_kept() -> None:
    bench = Bench()
    job = bench.add("a", tokens(20), 10)
    bench.add("b", tokens(20, 50), 10)
    bench.step()
    assert job.sequence is not None
    bench.runner.broken.add(job.sequence)
    bench.run()
    assert bench.broken == {"a": "nan"}
    assert bench.done["b"] == alone(tokens(20, 50), 10)
    again = bench.add("c", tokens(20), 10)
    bench.run()
    assert again.cached == 0


def test_the_next_turn_starts_from_the_last_one() -> None:
    bench = Bench()
    bench.add("first", tokens(100), 10)
    bench.run()
    conversation = tokens(100) + bench.done["first"] + tokens(20, 77)
    before = len(bench.runner.steps)
    second = bench.add("second", conversation, 10)
    bench.run()
    assert second.cached == 109  # all but the last token drawn, which was never computed
    assert sum(len(row.tokens) for row in bench.runner.steps[before]) == len(conversation) - 109
    assert bench.done["second"] == alone(conversation, 10)


@pytest.mark.parametrize("faster", [True, False])
def test_a_step_is_filled_up_to_a_tile_with_cached_tokens_where_that_is_faster(faster: bool) -> None:
    bench = Bench(behaviour=FakeBehaviour(tile=40))
    bench.scheduler.costs.observe(21, 0.2 if faster else 0.021)
    bench.add("first", tokens(100), 10)
    bench.run()
    conversation = tokens(100) + bench.done["first"] + tokens(20, 77)
    before = len(bench.runner.steps)
    second = bench.add("second", conversation, 10)
    bench.run()
    assert bench.done["second"] == alone(conversation, 10)
    assert sum(len(row.tokens) for row in bench.runner.steps[before]) == (40 if faster else 21)
    assert second.cached == len(conversation) - (40 if faster else 21)
    third = bench.add("third", [*conversation, *bench.done["second"], 5, 6], 10)
    bench.run()
    assert third.cached == len(conversation) + 9, "two tokens are not worth a tile"


def test_keys_share_nothing() -> None:
    bench = Bench()
    bench.add("a", tokens(100), 3, key="alice")
    bench.run()
    other = bench.add("b", tokens(100), 3, key="bob")
    bench.run()
    assert other.cached == 0
    assert bench.done["a"] == bench.done["b"]


def test_a_shared_prompt_is_prefilled_once_by_requests_that_arrive_together() -> None:
    bench = Bench(placement(capacity=2048, context=512))
    system = tokens(200)
    for i in range(6):
        bench.add(f"q{i}", system + tokens(20, 100 + 7 * i), 5)
    bench.run()
    assert bench.prefilled <= 200 + 6 * 20
    for i in range(6):
        assert bench.done[f"q{i}"] == alone(system + tokens(20, 100 + 7 * i), 5)


def test_a_shared_prompt_is_shared_also_where_windows_forget() -> None:
    behaviour = FakeBehaviour(window=16)
    bench = Bench(placement(capacity=2048, context=512), behaviour)
    system = tokens(200)
    jobs = [bench.add(f"q{i}", system + tokens(70, 100 + 7 * i), 5) for i in range(4)]
    bench.run()
    assert [job.cached for job in jobs] == [0, 200, 200, 200]
    for i in range(4):
        assert bench.done[f"q{i}"] == alone(system + tokens(70, 100 + 7 * i), 5, behaviour)


def test_idle_sequences_beyond_their_budget_are_parked_when_others_run_and_come_back() -> None:
    bench = Bench(limits=Limits(idle_cells=150, parked_bytes=8 * 400))
    for i in range(4):
        bench.add(f"c{i}", tokens(100, 40 * i), 5)
        bench.run()
    assert bench.scheduler.cache.idle_cells == 208  # the latest costs nobody anything, and one is within the budget
    assert bench.scheduler.cache.parked_bytes == 8 * 2 * 104
    back = bench.add("back", tokens(100) + tokens(30, 200), 5)
    bench.run()
    assert back.cached == 100
    assert bench.done["back"] == alone(tokens(100) + tokens(30, 200), 5)


def test_parked_bytes_stay_within_their_budget_oldest_first() -> None:
    bench = Bench(limits=Limits(idle_cells=0, parked_bytes=8 * 220))
    for i in range(4):
        bench.add(f"c{i}", tokens(100, 40 * i), 5)
        bench.run()
    assert bench.scheduler.cache.parked_bytes == 8 * 208
    assert bench.scheduler.cache.held(tokens(100), "") < 100
    assert bench.scheduler.cache.held(tokens(100, 120), "") == 100


@pytest.mark.parametrize("behaviour", [FakeBehaviour(), FakeBehaviour(window=12), FakeBehaviour(recurrent=True)])
def test_whatever_is_shared_parked_or_suspended_the_text_is_that_of_a_job_alone(
    behaviour: FakeBehaviour,
) -> None:
    bench = Bench(placement(capacity=400), behaviour, Limits(idle_cells=100, parked_bytes=8 * 300, max_running=5))
    prompts = [tokens(50 + 13 * (i % 5), 20 * (i % 3)) + tokens(10, i) for i in range(24)]
    for i, prompt in enumerate(prompts):
        bench.add(f"j{i}", prompt, 20, priority=i % 2)
        bench.step()
    bench.run()
    for i, prompt in enumerate(prompts):
        assert bench.done[f"j{i}"] == alone(prompt, 20, behaviour)


def test_guesses_that_come_true_save_steps_and_change_no_text() -> None:
    bench = Bench()
    bench.guess()
    prompts = {f"j{i}": tokens(30, i) for i in range(3)}
    for name, prompt in prompts.items():
        bench.add(name, prompt, 40)
    bench.run()
    assert bench.done == {name: alone(prompt, 40) for name, prompt in prompts.items()}
    assert len(bench.runner.steps) < 30
    assert any(row.draft for step in bench.runner.steps for row in step)


def test_no_guess_where_a_prompt_waits_for_the_rows() -> None:
    bench = Bench()
    bench.guess()
    bench.add("a", tokens(20), 60)
    bench.step()
    bench.add("long", tokens(200, 7), 5)
    while not bench.order or bench.order[-1] != "long":
        bench.step()
        assert not any(row.draft for row in bench.runner.steps[-1])
