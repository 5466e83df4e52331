"""The measured cost model: what it learns, and how it answers between and beyond what it saw."""

from __future__ import annotations

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


def test_steps_that_keep_taking_longer_are_made_smaller_at_once() -> None:
    """A prompt grows deep: every step of 256 tokens takes 0.01 s more than the one before."""
    costs = StepCosts()
    costs.observe(64, 0.05)
    for step in range(11):
        costs.observe(256, 0.2 + 0.01 * step)
    size = costs.fits(0.2, 64, 512)
    assert size * 0.31 / 256 <= 0.2 * 1.05
    for _ in range(10):  # and the next prompt starts shallow again
        costs.observe(size, 0.2 * size / 256)
    assert costs.fits(0.2, 64, 512) >= 200
