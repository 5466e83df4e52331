"""The measured cost model: what it learns, and how it answers between and beyond what it saw."""

from __future__ import annotations

import pytest

from edgellm.engine.costs import StepCosts


def test_nothing_measured_predicts_nothing_and_allows_everything() -> None:
    costs = StepCosts()
    assert costs.predict(100) == 0.0
    assert costs.fits(0.1, 1, 500) == 500
    assert not costs.known(1)


def test_interpolates_between_and_extends_beyond() -> None:
    costs = StepCosts()
    costs.observe(64, 0.2)
    costs.observe(128, 0.3)
    assert abs(costs.predict(96) - 0.25) < 1e-9
    assert abs(costs.predict(256) - 0.6) < 1e-9
    assert costs.predict(1) == 0.2  # a smaller step is not promised to be faster than one that was seen
    assert costs.known(64)
    assert not costs.known(512)


def test_fits_is_the_largest_step_within_the_time() -> None:
    costs = StepCosts()
    costs.observe(1, 0.01)
    costs.observe(64, 0.2)
    costs.observe(256, 0.8)
    assert costs.fits(0.5, 64, 512) == 160
    assert costs.fits(0.05, 64, 512) == 64  # never below the lower bound
    assert costs.fits(10.0, 64, 512) == 512


def test_one_slow_step_does_not_become_the_truth_but_a_lasting_change_does() -> None:
    costs = StepCosts()
    for _ in range(10):
        costs.observe(1, 0.01)
    costs.observe(1, 5.0)
    assert costs.predict(1) < 0.02
    for _ in range(50):
        costs.observe(1, 0.03)
    assert abs(costs.predict(1) - 0.03) < 0.001


def true_seconds(tokens: int, pairs: float) -> float:
    """A machine that attends in tiles from 64 tokens on, and row by row, five times as slowly, below."""
    return 0.005 + 0.001 * tokens + (1e-6 if tokens >= 64 else 5e-6) * pairs


def prefill(costs: StepCosts, length: int, limit: float = 0.2) -> list[float]:
    """Seconds of the steps of a prompt, each as large as `limit` allows."""
    taken, done = [], 0
    while done < length:

        def pairs(tokens: int, start: int = done) -> float:
            return tokens * (start + tokens / 2)

        size = costs.fits(limit, 64, 512, pairs) if costs.known(64) else 64
        taken.append(true_seconds(size, pairs(size)))
        costs.observe(size, taken[-1], pairs(size))
        done += size
    return taken


def test_the_steps_of_a_prompt_grow_smaller_as_it_grows_deep() -> None:
    costs = StepCosts()
    costs.observe(1, true_seconds(1, 0.0))
    first, second = prefill(costs, 2000), prefill(costs, 2000)
    assert max(first) < 0.2 * 1.4  # while it learns
    assert max(second) < 0.2 * 1.05
    assert max(prefill(costs, 2000)) < 0.2 * 1.03
    # And a new prompt starts in large steps again, of some 190 tokens.
    assert costs.fits(0.2, 64, 512, lambda tokens: tokens * tokens / 2) > 165


def test_narrow_steps_pay_more_for_what_they_look_at() -> None:
    costs = StepCosts()
    costs.observe(1, true_seconds(1, 0.0))
    prefill(costs, 2000)
    for depth in (100.0, 1500.0):  # two short ends of prompts
        costs.observe(33, true_seconds(33, 33 * depth), 33 * depth)
    deep = 33 * 1800.0
    assert 0.7 < costs.predict(33, deep) / true_seconds(33, deep) < 1.3
    assert costs.predict(33, deep) > 0.8 * costs.predict(64, 64 * 1800.0)


def test_attention_is_guessed_at_before_any_was_measured() -> None:
    """A first prompt's second chunk must not be planned as if it looked at nothing."""
    costs = StepCosts()
    costs.observe(256, 0.256, pairs=256 * 128)
    guess = costs.predict(256, 256 * 1128) / costs.predict(256, 256 * 128)
    assert 1.3 < guess < 1.7
    for depth in (128, 628, 1128, 1628) * 4:  # it costs nothing, as it turns out
        costs.observe(256, 0.256, pairs=256 * depth)
    assert costs.predict(256, 256 * 1628) == pytest.approx(0.256, rel=0.02)


def test_a_sleep_in_the_first_step_of_a_size_is_not_its_time() -> None:
    costs = StepCosts()
    costs.observe(1, 0.01)
    costs.observe(256, 0.2)
    costs.observe(512, 30_000.0)
    assert costs.predict(512) <= 4 * 0.4
    for _ in range(20):
        costs.observe(512, 0.4)
    assert costs.fits(0.45, 1, 512) == 512


def test_a_clock_too_coarse_for_a_step_is_not_believed_for_ever() -> None:
    costs = StepCosts()
    costs.observe(1, 0.0)
    for _ in range(20):
        costs.observe(1, 0.01)
        costs.observe(64, 0.1)
    assert costs.predict(1) > 0.005
    assert costs.predict(64) > 0.05
