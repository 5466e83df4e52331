"""The torch engine's sampler chain: held against the reference chain, and against llama.cpp's engine, draw by draw."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest
import torch
from edgellm_llamacpp import penalties as numpy_penalties
from edgellm_llamacpp.sampling import choose as choose_numpy
from edgellm_torch.sampling.chain import choose, remembers
from edgellm_torch.sampling.drawing import Drawing
from edgellm_torch.sampling.logprobs import log_probabilities
from edgellm_torch.sampling.ordering import head, rows_at_once
from edgellm_torch.sampling.penalties import Draw, reweighed
from hypothesis import example, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from reference_chain import reference_choice, reference_logprobs
from sampler_specs import FIELDS, PATTERN, SPECS, Floats, row, spec

from edgellm.contracts.runner import Row, SampleSpec


def one(logits: Floats, draw: Draw) -> tuple[int | None, float]:
    return choose(torch.from_numpy(logits)[None], [draw])[0]


@pytest.mark.parametrize("name", SPECS)
@pytest.mark.parametrize("size", [37, 2000])
def test_equals_the_reference(name: str, size: int) -> None:
    for seed in range(2):
        logits = row(size, seed)
        for position in range(4):
            split = len(PATTERN) - position  # drafted tokens count like those before them
            token, carry = one(logits, Draw(SPECS[name], position, PATTERN[:split], PATTERN[split:]))
            expected, mu = reference_choice(logits.tolist(), SPECS[name], position, PATTERN)
            assert token == expected
            assert carry == pytest.approx(mu, abs=1e-4)


def test_all_kinds_of_rows_in_one_call_are_drawn_as_alone() -> None:
    logits = np.stack([row(3000, seed) for seed in range(len(SPECS))])
    draws = [Draw(chosen, 3 + place, PATTERN) for place, chosen in enumerate(SPECS.values())]
    together = choose(torch.from_numpy(logits), draws)
    assert together == [one(logits[place], draw) for place, draw in enumerate(draws)]
    assert len({token for token, _ in together}) > 10


def test_many_rows_are_drawn_in_parts() -> None:
    assert rows_at_once(49_152) == 10
    assert rows_at_once(262_144) == 2
    assert rows_at_once(1 << 20) == 1
    logits = torch.from_numpy(np.stack([row(49_152, seed) for seed in range(23)]))
    draws = [Draw(SPECS["usual"], position) for position in range(23)]
    together = choose(logits, draws)
    assert together == [choose(logits[place : place + 1], [draw])[0] for place, draw in enumerate(draws)]
    tokens = [token or 0 for token, _ in together]
    found = log_probabilities(logits, tokens, [2] * 23)
    assert found[22] == log_probabilities(logits[22:], tokens[22:], [2])[0]


@pytest.mark.parametrize("name", SPECS)
def test_draws_are_those_of_the_other_engine(name: str) -> None:
    """On a vocabulary of real size, where that one sorts no more than it must."""
    for position in range(6):
        logits = row(49_152, 100 + position)
        expected = choose_numpy(logits, SPECS[name], position, PATTERN)
        token, carry = one(logits, Draw(SPECS[name], position, PATTERN))
        assert token == expected[0]
        assert carry == pytest.approx(expected[1], abs=1e-4)


@settings(max_examples=60)
@given(
    st.integers(20, 300),
    st.integers(0, 1 << 32),
    st.lists(st.fixed_dictionaries({}, optional=FIELDS), min_size=1, max_size=4),
    st.lists(st.integers(0, 3) | st.integers(0, 19), max_size=40),
    st.integers(0, 6),
    st.sampled_from([0.0, 4.3]),
)
def test_any_rows_equal_the_reference(
    size: int, numbers: int, fields: list[dict[str, object]], history: list[int], drafted: int, carry: float
) -> None:
    specs = [SampleSpec(**given) for given in fields]  # type: ignore[arg-type]
    logits = np.stack([row(size, numbers + place) for place in range(len(specs))])
    split = max(0, len(history) - drafted)
    before, after = history[:split], history[split:]
    draws = [Draw(chosen, 2 * place, before, after, carry) for place, chosen in enumerate(specs)]
    changed = reweighed(torch.from_numpy(logits), draws).numpy()
    for place, chosen in enumerate(specs):
        expected = numpy_penalties.reweighed(logits[place], chosen, before, after)
        np.testing.assert_array_equal(changed[place], expected)  # to the bit
    for place, (token, carried) in enumerate(choose(torch.from_numpy(logits), draws)):
        wanted, mu = reference_choice(logits[place].tolist(), specs[place], 2 * place, history, carry)
        assert token == wanted
        assert carried == pytest.approx(mu, abs=1e-4)


@settings(max_examples=60)
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
    assert one(logits, Draw(chosen, 5))[0] == reference_choice(logits.tolist(), chosen, 5)[0]


def test_the_order_is_by_logit_then_id() -> None:
    logits = row(4001)
    logits[::7] = logits[2000]
    logits[11], logits[12], logits[13] = -0.0, 0.0, -np.inf
    expected = np.argsort(-logits, kind="stable")
    for count in (1, 50, 4001):
        np.testing.assert_array_equal(head(torch.from_numpy(logits)[None], count)[0].numpy(), expected[:count])


@pytest.mark.parametrize("bad", [np.nan, np.inf])
@pytest.mark.parametrize("name", SPECS)
def test_a_row_that_is_not_finite_is_found_and_hurts_no_other(name: str, bad: float) -> None:
    logits = np.stack([row(3000), row(3000)])
    logits[0, 7] = bad
    found = choose(torch.from_numpy(logits), [Draw(SPECS[name], 0, (7, 7, 3, 7))] * 2)
    assert found[0][0] is None
    assert found[1] == one(logits[1], Draw(SPECS[name], 0, (7, 7, 3, 7)))


def test_minus_infinity_is_a_token_that_cannot_be_drawn() -> None:
    logits = np.full(3000, -np.inf, np.float32)
    assert one(logits, Draw(spec()))[0] is None
    logits[[5, 7]] = 1.0
    for chosen in (spec(temperature=5), spec(top_k=100), SampleSpec(typical_p=0.9), SampleSpec(min_p=0.1)):
        assert {one(logits, Draw(chosen, position))[0] for position in range(50)} == {5, 7}


@pytest.mark.parametrize("temperature", [1e-300, 1e-9, 1e9])
def test_extreme_temperatures_and_logits_do_not_overflow(temperature: float) -> None:
    logits = row(2000)
    logits[:5] = [-3e38, 3e38, 3.1e38, -np.inf, 0]
    for top_k in (0, 3):
        assert one(logits, Draw(spec(temperature=temperature, top_k=top_k)))[0] == 2


def test_min_p_is_relative_to_the_likeliest_that_is_left() -> None:
    logits = np.array([3.0, *[0.0] * 60, *[-1.0] * 40], np.float32)
    chosen = SampleSpec(typical_p=0.6, min_p=0.5, temperature=1e6)
    drawn = {one(logits, Draw(chosen, position))[0] for position in range(300)}
    assert drawn == {reference_choice(logits.tolist(), chosen, position)[0] for position in range(300)}
    assert 0 not in drawn


def test_the_rows_are_not_changed() -> None:
    logits = torch.from_numpy(row(5000))[None]
    before = logits.clone()
    for chosen in SPECS.values():
        assert choose(logits, [Draw(chosen, 0, PATTERN)])[0][0] is not None
    assert torch.equal(logits, before)


def test_log_probabilities_are_those_of_the_reference() -> None:
    logits = np.stack([row(700, seed) for seed in range(3)])
    found = log_probabilities(torch.from_numpy(logits), [5, 6, 7], [3, 0, 20])
    for place, (token, count) in enumerate(((5, 3), (6, 0), (7, 20))):
        expected = reference_logprobs(logits[place].tolist(), token, count)
        assert found[place].chosen == pytest.approx(expected.chosen, abs=1e-9)
        assert [token for token, _ in found[place].top] == [token for token, _ in expected.top]
        for (_, ours), (_, theirs) in zip(found[place].top, expected.top, strict=True):
            assert ours == pytest.approx(theirs, abs=1e-9)


def test_nothing_is_read_back_before_a_step_is_collected() -> None:
    """Tensors without numbers: whoever asks for one raises."""
    rows = [
        Row(number, 5, [1], msgspec.structs.replace(chosen, logprobs=number % 3 or None), 4, [2, 3], PATTERN)
        for number, chosen in enumerate(SPECS.values())
    ]
    draws = [1 if row.sample and remembers(row.sample) else 3 for row in rows]
    first = [3 * number for number in range(len(rows))]
    drawing = Drawing(rows, first, torch.empty((3 * len(rows), 50_000), device="meta"))
    assert drawing.tokens.shape == (sum(draws),)
    with pytest.raises((RuntimeError, NotImplementedError)):
        drawing.results()
