"""Guessing ahead: what prompt lookup finds, and when a guess is worth its rows."""

from __future__ import annotations

import msgspec
import pytest

from edgellm.contracts.engine import DraftMode
from edgellm.contracts.runner import RunnerInfo, SampleSpec
from edgellm.engine.costs import StepCosts
from edgellm.engine.job import Job
from edgellm.engine.limits import Limits
from edgellm.engine.lookup import PromptLookup
from edgellm.engine.speculation import Speculator

PATIENT = Limits(decode_step_s=1.0)
INFO = RunnerInfo(
    engine="x",
    context=512,
    capacity=512,
    max_sequences=8,
    batch_tokens=64,
    max_outputs=24,
    draft_tokens=8,
    exact_cells=1000,
)


def costs(per_row: float) -> StepCosts:
    """A step of one row takes 10 ms, every row more `per_row` ms."""
    made = StepCosts()
    for rows in (1, 2, 4, 8, 16, 32):
        made.observe(rows, (10 + per_row * (rows - 1)) / 1000)
    return made


def job(tokens: list[int], count: int = 100, name: str = "a") -> Job:
    return Job(name, tokens, SampleSpec(temperature=0.0), count)


class Says:
    """Proposes what it is told."""

    def __init__(self, *guess: int) -> None:
        self.guess = list(guess)

    def propose(self, tokens: list[int], most: int) -> tuple[list[int], int]:
        return self.guess[:most], 20


def test_lookup_finds_what_followed_the_same_tokens_last() -> None:
    lookup = PromptLookup()
    text = [1, 2, 3, 4, 5, 6, 1, 2, 3, 7, 8, 9, 2, 3]
    assert lookup.propose(text, 4) == ([], 0), "two equal tokens are not enough"
    text += [7]
    assert lookup.propose(text, 4) == ([8, 9, 2, 3], 3)
    text += [8, 9]
    assert lookup.propose(text, 2) == ([2, 3], 5)
    assert lookup.propose(text, 0) == ([], 0)


def test_lookup_never_finds_the_end_itself_and_takes_the_latest_of_many() -> None:
    assert PromptLookup().propose([1, 2, 3], 4) == ([], 0)
    assert PromptLookup().propose([1, 2, 3, 4, 1, 2, 3, 5, 1, 2, 3], 1) == ([5], 3)
    assert PromptLookup().propose([7] * 10, 3) == ([7, 7, 7], 9), "a run goes on"
    assert PromptLookup().propose([1, 2, 3, 4] * 2 + [1, 2, 3], 6) == ([4, 1, 2, 3, 4, 1], 7), "and so does a circle"


def test_a_guess_joins_where_rows_are_cheap_and_not_where_they_are_dear() -> None:
    for per_row, guessed in ((0.5, True), (9.0, False)):
        speculator = Speculator(INFO, costs(per_row), PATIENT)
        speculator.proposer = lambda: Says(*range(8))
        assert bool(speculator.plan([job([1, 2, 3])])) is guessed


def test_guesses_stop_when_they_are_wrong_and_come_back_when_they_would_be_right() -> None:
    speculator = Speculator(INFO, costs(3.0), PATIENT)
    speculator.proposer = lambda: Says(5, 6, 7)
    one = job([1, 2, 3])
    tried = 0
    for _ in range(40):
        tried = tried + 1 if speculator.plan([one]) else 0
        speculator.learn(one, [9])
    assert tried == 0
    assert one.drafted > 0
    assert one.accepted == 0
    for _ in range(40):
        guess = speculator.plan([one]).get(one, ())
        speculator.learn(one, [5, 6, 7, 8][: len(guess) + 1])
    assert speculator.plan([one]), "nobody acted on these guesses, and yet they were seen to be right"


@pytest.mark.parametrize(("count", "most"), [(1, 0), (2, 1), (100, 8)])
def test_never_beyond_the_end_of_the_answer(count: int, most: int) -> None:
    speculator = Speculator(INFO, costs(0.1), PATIENT)
    speculator.proposer = lambda: Says(*range(20))
    one = job([1, 2, 3], count)
    assert len(speculator.plan([one]).get(one, ())) == most


def test_never_beyond_the_context_or_what_a_step_may_draw() -> None:
    speculator = Speculator(INFO, costs(0.1), PATIENT)
    speculator.proposer = lambda: Says(*range(20))
    full = job([1] * 509, 100)
    assert len(speculator.plan([full])[full]) == 2
    many = [job([1, 2, i], name=str(i)) for i in range(6)]
    plan = speculator.plan(many)
    assert sum(len(guess) for guess in plan.values()) == INFO.max_outputs - 6


def test_a_job_that_wants_none_gets_none() -> None:
    speculator = Speculator(INFO, costs(0.1), PATIENT)
    speculator.proposer = lambda: Says(*range(20))
    one = Job("a", [1, 2, 3], SampleSpec(), 50, drafts=False)
    assert not speculator.plan([one])
    speculator.learn(one, [4])


def test_only_where_nothing_can_change_unless_that_is_allowed() -> None:
    modes: list[tuple[DraftMode, int, bool]] = [
        ("auto", 100, True),
        ("auto", 256, False),
        ("always", 256, True),
        ("off", 0, False),
    ]
    inexact = msgspec.structs.replace(INFO, exact_cells=256)
    for mode, placed, guessed in modes:
        limits = Limits(decode_step_s=1.0, drafts=mode)
        speculator = Speculator(inexact, costs(0.1), limits)
        speculator.proposer = lambda: Says(*range(8))
        assert bool(speculator.plan([job([1, 2, 3])], placed)) is guessed, (mode, placed)
