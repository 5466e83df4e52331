"""Drafts: a runner draws what it would have drawn one token at a time, keeps what came true and drops the rest."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from contract.driving import GREEDY, WARM, answer, append, prompt, step
from contract.engines import Engine

from edgellm.contracts.runner import Result, Row, SampleSpec, TokenRunner

COUNT = 24


def drafted(
    runner: TokenRunner, ids: Sequence[int], right: Sequence[int], wrong_at: int, spec: SampleSpec
) -> list[int]:
    """The answer in steps with drafts taken from `right`, of which every `wrong_at`-th token is another."""
    append(runner, 0, 0, ids[:-1])
    drawn: list[int] = []
    most = runner.info.draft_tokens
    while len(drawn) < len(right):
        position = len(drawn)
        guess = list(right[position : min(position + most, len(right) - 1)])
        for index in range(wrong_at - 1, len(guess), wrong_at):
            guess[index] = (guess[index] + 1) % 200
        held = [*ids, *drawn]
        row = Row(0, len(held) - 1, held[-1:], spec, position, guess, held)
        (result,) = step(runner, row)
        assert result.error is None
        assert 1 <= len(result.tokens) <= len(guess) + 1
        drawn.extend(result.tokens)
    return drawn


@pytest.mark.parametrize("spec", [GREEDY, WARM], ids=["greedy", "warm"])
@pytest.mark.parametrize("wrong_at", [1, 3, 100])
def test_the_answer_is_the_same_with_drafts_right_and_wrong(
    engine: Engine, runner: TokenRunner, spec: SampleSpec, wrong_at: int
) -> None:
    if runner.info.draft_tokens == 0:
        pytest.skip("verifies no drafts")
    if not runner.info.exact_cells:
        pytest.skip("its rows round by company: drafts are off by default")
    ids = prompt(engine.tokenizer)
    expected = answer(runner, 1, ids, COUNT, spec)
    runner.free(1)
    assert drafted(runner, ids, expected, wrong_at, spec) == expected


def test_what_was_not_accepted_leaves_no_trace(engine: Engine, runner: TokenRunner) -> None:
    if runner.info.draft_tokens == 0:
        pytest.skip("verifies no drafts")
    ids = prompt(engine.tokenizer)
    expected = answer(runner, 1, ids, 6)
    append(runner, 0, 0, ids[:-1])
    wrong = [(expected[0] + 1) % 200] * 2
    (result,) = step(runner, Row(0, len(ids) - 1, ids[-1:], GREEDY, 0, wrong))
    assert len(result.tokens) == 1
    assert runner.reusable(0, len(ids) + 5) == len(ids), "the sequence ends where the last right token does"
    start = len(ids)
    if runner.info.exact_cells:
        drawn = list(result.tokens)
        for position in range(1, 6):
            (result,) = step(runner, Row(0, start, [drawn[-1]], GREEDY, position))
            drawn.extend(result.tokens)
            start += 1
        assert drawn == expected


def test_drafts_without_a_draw_or_longer_than_allowed_are_refused(engine: Engine, runner: TokenRunner) -> None:
    ids = prompt(engine.tokenizer)
    append(runner, 0, 0, ids[:-1])
    for row in (
        Row(0, len(ids) - 1, ids[-1:], None, 0, [5]),
        Row(0, len(ids) - 1, ids[-1:], GREEDY, 0, [5] * (runner.info.draft_tokens + 1)),
    ):
        with pytest.raises(ValueError, match="draft"):
            runner.submit([row])
    assert step(runner, Row(0, len(ids) - 1, ids[-1:])) == [Result()], "nothing had happened"


def test_log_probabilities_are_of_the_raw_logits(engine: Engine, runner: TokenRunner) -> None:
    ids = prompt(engine.tokenizer)
    append(runner, 0, 0, ids[:-1])
    spec = SampleSpec(temperature=0.0, logprobs=4, top_k=1)
    (result,) = step(runner, Row(0, len(ids) - 1, ids[-1:], spec))
    (found,) = result.logprobs
    assert len(found.top) == 4
    assert found.top[0] == (result.tokens[0], found.chosen)
    values = [value for _, value in found.top]
    assert values == sorted(values, reverse=True)
    assert values[0] <= 0
