"""Steps in flight: what an engine of depth 2 promises, and how one of depth 1 says that it has none."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from contract.driving import GREEDY, STORY, WARM, answer, append, fill, prompt, step, token
from contract.engines import Engine

from edgellm.contracts.runner import PREVIOUS, Row, SampleSpec, TokenRunner

COUNT = 8


def ahead(runner: TokenRunner) -> None:
    if runner.info.pipeline_depth < 2:
        pytest.skip("has one step in flight")


def drawn(
    runner: TokenRunner, prompts: Sequence[Sequence[int]], specs: Sequence[SampleSpec], count: int = COUNT
) -> list[list[int]]:
    """`count` tokens after each prompt, every step submitted before the one before is collected."""
    rows = [Row(sequence, 0, ids, spec) for sequence, (ids, spec) in enumerate(zip(prompts, specs, strict=True))]
    found: list[list[int]] = [[] for _ in rows]
    ticket = runner.submit(rows)
    for position in range(1, count + 1):
        following = None
        if position < count:
            rows = [
                Row(row.sequence, row.start + len(row.tokens), (PREVIOUS,), row.sample, position, carry=row.carry)
                for row in rows
            ]
            following = runner.submit(rows)
        for tokens, result in zip(found, runner.collect(ticket), strict=True):
            tokens.append(token(result))
        ticket = following
    return found


def test_an_engine_of_depth_one_refuses_what_is_not_known_yet(engine: Engine, runner: TokenRunner) -> None:
    if runner.info.pipeline_depth > 1:
        pytest.skip("has two steps in flight")
    ids = prompt(engine.tokenizer)
    step(runner, Row(0, 0, ids, GREEDY))
    with pytest.raises(ValueError):
        runner.submit([Row(0, len(ids), (PREVIOUS,), GREEDY, 1)])


def test_a_token_may_be_computed_before_it_is_known(engine: Engine, runner: TokenRunner) -> None:
    ahead(runner)
    prompts = [prompt(engine.tokenizer, STORY[start : start + 60]) for start in (0, 80, 100)]
    specs = [GREEDY, WARM, SampleSpec(temperature=1.3, seed=5, choice=1, logprobs=2)]
    expected = [
        answer(runner, 5 + n, ids, COUNT, spec) for n, (ids, spec) in enumerate(zip(prompts, specs, strict=True))
    ]
    assert drawn(runner, prompts, specs) == expected
    for sequence, (ids, tokens) in enumerate(zip(prompts, expected, strict=True)):
        assert runner.reusable(sequence, 1000) == len(ids) + COUNT - 1
        row = Row(sequence, len(ids) + COUNT - 1, tokens[-1:], GREEDY, COUNT)
        assert token(step(runner, row)[0]) >= 0


def test_others_may_come_go_and_be_chunked_between(engine: Engine, runner: TokenRunner) -> None:
    ahead(runner)
    ids, other = prompt(engine.tokenizer), prompt(engine.tokenizer, STORY[40:])
    expected, different = answer(runner, 5, ids, 3), answer(runner, 6, other, 2)
    first = runner.submit([Row(0, 0, ids, GREEDY), Row(1, 0, other[:9])])
    second = runner.submit([Row(1, 9, other[9:], GREEDY), Row(0, len(ids), (PREVIOUS,), GREEDY, 1)])
    assert [result.tokens for result in runner.collect(first)] == [(expected[0],), ()]
    third = runner.submit([Row(1, len(other), (PREVIOUS,), GREEDY, 1)])
    assert [result.tokens for result in runner.collect(second)] == [(different[0],), (expected[1],)]
    fourth = runner.submit([Row(0, len(ids) + 1, [expected[1]], GREEDY, 2)])
    assert runner.collect(third)[0].tokens == (different[1],)
    assert runner.collect(fourth)[0].tokens == (expected[2],)


def test_steps_are_collected_in_order_and_no_more_than_two_are_in_flight(engine: Engine, runner: TokenRunner) -> None:
    ahead(runner)
    first = runner.submit([Row(0, 0, [1], GREEDY)])
    second = runner.submit([Row(1, 0, [1], GREEDY)])
    with pytest.raises(ValueError):
        runner.collect(second)
    with pytest.raises(ValueError):
        runner.submit([Row(2, 0, [1], GREEDY)])
    assert token(runner.collect(first)[0]) >= 0
    with pytest.raises(ValueError):
        runner.collect(first)
    assert token(runner.collect(second)[0]) >= 0


def test_what_is_in_flight_is_left_alone_and_the_rest_may_be_used(engine: Engine, runner: TokenRunner) -> None:
    ahead(runner)
    ids = prompt(engine.tokenizer)
    expected = answer(runner, 3, ids, 2)
    runner.free(3)
    append(runner, 1, 0, ids[:-1])
    parked = runner.park(1)
    ticket = runner.submit([Row(0, 0, ids, GREEDY)])
    for call in (
        lambda: runner.free(0),
        lambda: runner.truncate(0, 1),
        lambda: runner.reusable(0, 1),
        lambda: runner.fork(0, 2, 1),
        lambda: runner.fork(1, 0, 1),
        lambda: runner.park(0),
        lambda: runner.unpark(parked, 0),
    ):
        with pytest.raises(ValueError):
            call()
    assert runner.reusable(1, 1000) == len(ids) - 1
    runner.fork(1, 2, len(ids) - 1)
    runner.unpark(runner.park(1), 3)
    runner.free(1)
    following = runner.submit([Row(n, len(ids) - 1, ids[-1:], GREEDY) for n in (2, 3)])
    assert token(runner.collect(ticket)[0]) == expected[0]
    runner.free(0)
    assert [token(result) for result in runner.collect(following)] == [expected[0]] * 2


def test_nothing_is_taken_that_is_not_being_drawn(engine: Engine, runner: TokenRunner) -> None:
    ahead(runner)
    ids = prompt(engine.tokenizer)
    with pytest.raises(ValueError):
        runner.submit([Row(0, 0, (PREVIOUS,), GREEDY)])
    draft = [ids[0]] if runner.info.draft_tokens else []
    ticket = runner.submit([Row(0, 0, ids), Row(1, 0, ids[:5], GREEDY), Row(2, 0, ids[:4], GREEDY, 0, draft)])
    bad = [
        Row(0, len(ids), (PREVIOUS,), GREEDY),  # is not sampled
        Row(1, 5, (PREVIOUS, 1), GREEDY, 1),
        Row(1, 5, (1, PREVIOUS), GREEDY, 1),
        Row(3, 0, (PREVIOUS,), GREEDY),
    ]
    if draft:
        bad += [Row(2, start, tokens, GREEDY, 1) for start in (4, 5) for tokens in ((PREVIOUS,), ids[:1])]
    for row in bad:
        with pytest.raises(ValueError):
            runner.submit([row])
    assert token(runner.collect(ticket)[1]) >= 0
    with pytest.raises(ValueError):  # it is known by now
        runner.submit([Row(1, 5, (PREVIOUS,), GREEDY, 1)])


def test_after_a_step_without_room_the_next_has_none_either(engine: Engine, tiny: TokenRunner) -> None:
    ahead(tiny)
    ids = (prompt(engine.tokenizer) * 6)[:200]
    expected = answer(tiny, 0, ids[:21], 2)
    tiny.free(0)
    append(tiny, 0, 0, ids)
    append(tiny, 1, 0, ids[:20])
    fill(tiny, 3, ids)
    first = tiny.submit([Row(1, 20, [ids[20]], GREEDY), Row(2, 0, ids[:40])])
    second = tiny.submit([Row(1, 21, (PREVIOUS,), GREEDY, 1), Row(2, 40, ids[40:50])])
    assert [result.error for result in tiny.collect(first)] == ["no_room"] * 2
    assert [result.error for result in tiny.collect(second)] == ["no_room"] * 2
    tiny.free(0)
    first = tiny.submit([Row(1, 20, [ids[20]], GREEDY)])
    second = tiny.submit([Row(1, 21, (PREVIOUS,), GREEDY, 1)])
    assert [token(tiny.collect(ticket)[0]) for ticket in (first, second)] == expected
