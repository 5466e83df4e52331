"""Figures for people."""

from __future__ import annotations

import pytest

from edgellm.units import GIB, MIB, ago, number, parameters, seconds, size


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0 B"),
        (812 * 1024, "812 KiB"),
        (94 * MIB, "94 MiB"),
        (1000 * MIB, "1.0 GiB"),
        (int(2.5 * GIB), "2.5 GiB"),
    ],
)
def test_sizes(count: int, text: str) -> None:
    assert size(count) == text


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (999, "999"),
        (1500, "2K"),
        (134_515_008, "135M"),
        (999_600_000, "1.0B"),
        (4_022_468_096, "4.0B"),
        (116_829_156_672, "117B"),
    ],
)
def test_parameter_counts(count: int, text: str) -> None:
    assert parameters(count) == text


def test_durations() -> None:
    assert [seconds(value) for value in (0.163, 42, 200, 7300)] == ["0.16 s", "42 s", "3 min", "2 h"]
    assert seconds(2.4, whole=True) == "2 s"
    assert [seconds(value) for value in (300_000, 1e9, 1e300)] == ["3 days", "11,574 days", "over 100 years"]
    assert number(8192) == "8,192"


@pytest.mark.parametrize(
    ("age", "text"),
    [
        (5, "just now"),
        (130, "2 min ago"),
        (7200, "2 h ago"),
        (90_000, "yesterday"),
        (12 * 86_400, "12 days ago"),
    ],
)
def test_ages(age: float, text: str) -> None:
    assert ago(age) == text
