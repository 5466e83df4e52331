"""The sampler chain in numpy against the same chain written to be read."""

from __future__ import annotations

import numpy as np
import pytest
from edgellm_llamacpp.ordering import descending
from edgellm_llamacpp.penalties import reweighed
from edgellm_llamacpp.sampling import choose
from hypothesis import example, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from msgspec.structs import replace
from reference_chain import SAMPLERS, reference_choice, reference_logits
from sampler_specs import FIELDS, PATTERN, SPECS, Floats, row, spec

from edgellm.contracts import chain
from edgellm.contracts.chain import dry
from edgellm.contracts.runner import SampleSpec


@pytest.mark.parametrize("name", SPECS)
@pytest.mark.parametrize("size", [37, 2000, 9000])
def test_equals_the_reference(name: str, size: int) -> None:
    for seed in range(2):
        logits = row(size, seed)
        listed = logits.tolist()
        for position in range(4):
            split = len(PATTERN) - position  # drafted tokens count like those before them
            drawn = choose(logits, SPECS[name], position, PATTERN[:split], PATTERN[split:], 0.0)
            expected = reference_choice(listed, SPECS[name], position, PATTERN)
            assert drawn[0] == expected[0]
            assert drawn[1] == pytest.approx(expected[1], abs=1e-4)


@settings(max_examples=100)
@given(
    st.integers(20, 300),
    st.integers(0, 1 << 32),
    st.fixed_dictionaries({}, optional=FIELDS),
    st.lists(st.integers(0, 3) | st.integers(0, 19), max_size=40),
    st.integers(0, 6),
    st.sampled_from([0.0, 4.3]),
)
def test_any_chain_equals_the_reference(
    size: int, numbers: int, fields: dict[str, object], history: list[int], drafted: int, carry: float
) -> None:
    logits = row(size, numbers)
    listed = logits.tolist()
    chosen = SampleSpec(**fields)  # type: ignore[arg-type]
    split = max(0, len(history) - drafted)
    before, after = history[:split], history[split:]
    changed = reweighed(logits, chosen, before, after)
    np.testing.assert_allclose(changed, reference_logits(listed, chosen, history), rtol=1e-5, atol=1e-5)
    for position in range(3):
        token, carried = choose(logits, chosen, position, before, after, carry)
        expected, mu = reference_choice(listed, chosen, position, history, carry)
        assert token == expected
        assert carried == pytest.approx(mu, abs=1e-4)


def test_min_p_is_relative_to_the_likeliest_that_is_left() -> None:
    """Typical sampling drops the likeliest token of this row, which would have kept min-p from leaving the others."""
    logits = np.array([3.0, *[0.0] * 60, *[-1.0] * 40], np.float32)
    chosen = SampleSpec(typical_p=0.6, min_p=0.5, temperature=1e6)
    drawn = {choose(logits, chosen, position)[0] for position in range(300)}
    assert drawn == {reference_choice(logits.tolist(), chosen, position)[0] for position in range(300)}
    assert 0 not in drawn
    assert len(drawn) > 30


def test_every_neutral_sampler_changes_nothing() -> None:
    """The same tokens as from the chain of temperature, top-k and top-p alone, whatever came before."""
    neutral = {
        "min_p": 0.0, "typical_p": 1.0, "logit_bias": {}, "repeat_penalty": 1.0, "presence_penalty": 0.0,
        "frequency_penalty": 0.0, "dry_multiplier": 0.0, "xtc_probability": 0.0, "mirostat": 0,
    }  # fmt: skip
    for name in ("greedy", "plain", "top-k", "top-p", "usual"):
        for position in range(20):
            logits = row(1000, position)
            plain = choose(logits, SPECS[name], position)
            neutralised = replace(SPECS[name], **neutral)
            assert choose(logits, neutralised, position, PATTERN, PATTERN, 7.0) == (plain[0], 7.0)


@settings(max_examples=100)
@given(
    arrays.arrays(np.float32, st.integers(1, 300), elements=st.integers(-8, 8).map(np.float32)),
    st.sampled_from([0.0, 0.3, 1.0, 3.0]),
    st.integers(0, 40),
    st.sampled_from([0.05, 0.5, 0.9, 1.0]),
    st.integers(0, 1 << 64),
)
@example(np.zeros(10, np.float32), 0.3, 0, 0.9, 0)  # the nucleus ends exactly between two tokens
def test_ties_go_by_id(logits: Floats, temperature: float, top_k: int, top_p: float, seed: int) -> None:
    chosen = spec(temperature, top_k, top_p, seed)
    assert choose(logits, chosen, 5)[0] == reference_choice(logits.tolist(), chosen, 5)[0]


@pytest.mark.parametrize("bad", [np.nan, np.inf])
@pytest.mark.parametrize("name", SPECS)
def test_what_is_not_finite_is_found(name: str, bad: float) -> None:
    logits = row(3000)
    logits[1234] = bad
    assert choose(logits, SPECS[name], 0)[0] is None


def test_minus_infinity_is_a_token_that_cannot_be_drawn() -> None:
    logits = np.full(3000, -np.inf, np.float32)
    assert choose(logits, spec(), 0)[0] is None
    logits[[5, 7]] = 1.0
    assert {choose(logits, spec(temperature=5), position)[0] for position in range(50)} == {5, 7}
    assert {choose(logits, spec(top_k=100), position)[0] for position in range(50)} == {5, 7}


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("temperature", [1e-300, 1e-9, 1e9])
def test_extreme_temperatures_and_logits_do_not_overflow(temperature: float) -> None:
    logits = row(2000)
    logits[:5] = [-3e38, 3e38, 3.1e38, -np.inf, 0]
    for top_k in (0, 3):
        token, _ = choose(logits, spec(temperature=temperature, top_k=top_k), 0)
        assert token == 2


def test_the_row_is_not_changed() -> None:
    logits = row(5000)
    logits.flags.writeable = False
    for chosen in SPECS.values():
        assert choose(logits, chosen, 0, PATTERN)[0] is not None


@pytest.mark.parametrize("size", [100, 4096, 49_152, 262_147])
@pytest.mark.parametrize("count", [1, 50, 1000])
def test_the_head_of_the_order(size: int, count: int) -> None:
    logits = row(size, seed=size)
    logits[size // 3 :: 7] = logits[size // 2]  # ties
    head = descending(logits, min(count, size))
    assert head.size >= min(count, size)
    np.testing.assert_array_equal(head, np.argsort(-logits, kind="stable")[: head.size])


def test_little_is_sorted_for_a_short_head() -> None:
    """What makes it fast: a tenth of a millisecond per row instead of several."""
    assert descending(row(262_144), 50).size < 500
    assert descending(row(49_152, spread=0.1), 50).size < 500


# -- penalties


def test_last_n_counts_back_from_the_newest_token() -> None:
    logits = np.zeros(10, np.float32)
    chosen = SampleSpec(presence_penalty=1.0, repeat_last_n=3)
    assert np.flatnonzero(reweighed(logits, chosen, (1, 2, 3, 4), (5,))).tolist() == [3, 4, 5]
    assert np.flatnonzero(reweighed(logits, chosen, (1, 2), (3, 4, 5, 6))).tolist() == [4, 5, 6]
    assert np.flatnonzero(reweighed(logits, replace(chosen, repeat_last_n=0), (1, 2), (3,))).tolist() == []
    assert np.flatnonzero(reweighed(logits, replace(chosen, repeat_last_n=-1), (1, 2), (3,))).tolist() == [1, 2, 3]


def test_a_banned_token_stays_banned_and_large_numbers_stay_finite() -> None:
    logits = np.array([1, -np.inf, 3e38, -3e38, 0], np.float32)
    chosen = SampleSpec(repeat_penalty=0.1, logit_bias={1: 100.0, 2: 100.0}, repeat_last_n=-1)
    changed = reweighed(logits, chosen, (1, 2, 3), ())
    assert changed[1] == -np.inf
    assert changed[2] == np.finfo(np.float32).max
    steep = replace(chosen, dry_multiplier=1e6, dry_base=100.0, repeat_penalty=5.0)
    assert np.isfinite(reweighed(logits, steep, (3,) * 200, ())).tolist() == [True, False, True, True, True]


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_what_is_not_finite_is_found_under_penalties(bad: float) -> None:
    logits = row(100)
    logits[7] = bad
    for name in ("bias", "repeat", "everything"):
        assert choose(logits, SPECS[name], 0, (7, 7, 3, 7), ())[0] is None


def test_dry_is_linear_in_the_worst_text() -> None:
    """One token 30,000 times, and a text that nearly repeats: comparing all pairs would take minutes."""
    chosen = SampleSpec(dry_multiplier=1.0, dry_base=1.01)
    assert dry([5] * 30_000, chosen).keys() == {5}
    assert dry(([5] * 99 + [6]) * 300, chosen).keys() == {5, 6}


def test_the_engine_says_what_the_chain_knows() -> None:
    assert chain.SAMPLERS == SAMPLERS
