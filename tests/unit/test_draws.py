"""The random numbers behind every sampled token: fixed for ever, even, and independent of each other."""

from __future__ import annotations

import itertools
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgellm.contracts.draws import uniform

MASK = (1 << 64) - 1


def splitmix(state: int) -> int:
    """The first output of SplitMix64 seeded with `state`, as published."""
    z = (state + 0x9E3779B97F4A7C15) & MASK
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & MASK
    return z ^ (z >> 31)


def test_the_mixer_is_splitmix64() -> None:
    assert splitmix(0) == 0xE220A8397B1DCDAF  # the published first output for seed 0
    state = splitmix((splitmix((splitmix(42) + 3) & MASK) + 7) & MASK)
    assert uniform(42, 3, 7) == (state >> 11) / (1 << 53)


def test_numbers_never_change() -> None:
    """Texts drawn with a seed must stay what they are across versions."""
    assert uniform(0, 0, 0) == 0.13870941014555427
    assert uniform(1234, 0, 1) == 0.2035639649226203
    assert uniform(1 << 40, 5, 100) == 0.11679989663781432
    assert uniform(-1, 2, 3) == uniform(MASK, 2, 3)


@given(st.integers(-(1 << 70), 1 << 70), st.integers(0, 1 << 20), st.integers(0, 1 << 20))
def test_in_range_and_repeatable(seed: int, choice: int, position: int) -> None:
    number = uniform(seed, choice, position)
    assert 0 <= number < 1
    assert uniform(seed, choice, position) == number
    assert uniform(seed + (1 << 64), choice, position) == number


def series(axis: str, count: int) -> list[float]:
    if axis == "seed":
        return [uniform(i, 0, 0) for i in range(count)]
    if axis == "choice":
        return [uniform(7, i, 0) for i in range(count)]
    return [uniform(7, 0, i) for i in range(count)]


@pytest.mark.parametrize("axis", ["seed", "choice", "position"])
def test_even_along_every_axis(axis: str) -> None:
    numbers = series(axis, 20_000)
    buckets = [0] * 64
    for number in numbers:
        buckets[int(number * 64)] += 1
    expected = len(numbers) / 64
    chi_square = sum((count - expected) ** 2 / expected for count in buckets)
    assert chi_square < 103.4  # 99.9 % of a chi-square with 63 degrees of freedom
    assert abs(math.fsum(numbers) / len(numbers) - 0.5) < 0.01


@pytest.mark.parametrize("axis", ["seed", "choice", "position"])
def test_neighbours_are_independent(axis: str) -> None:
    numbers = series(axis, 20_000)
    pairs = itertools.pairwise(numbers)
    correlation = 12 * math.fsum((a - 0.5) * (b - 0.5) for a, b in pairs) / len(numbers)
    assert abs(correlation) < 0.03


def test_axes_do_not_mirror_each_other() -> None:
    seen = {uniform(s, c, p) for s in range(12) for c in range(12) for p in range(12)}
    assert len(seen) == 12**3
