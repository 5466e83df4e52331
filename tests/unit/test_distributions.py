"""Each sampler draws from the distribution that its definition says, worked out in numpy for a row of 300 logits."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt
import pytest
import torch
from edgellm_llamacpp.sampling import choose
from edgellm_torch.sampling.chain import choose as choose_rows
from edgellm_torch.sampling.penalties import Draw
from msgspec.structs import replace

from edgellm.contracts.runner import SampleSpec

Numbers = npt.NDArray[np.float64]


def softmax(logits: Numbers) -> Numbers:
    weights: Numbers = np.exp(logits - logits.max())
    total = float(weights.sum())
    return weights / total


def only(logits: Numbers, kept: npt.NDArray[np.bool_]) -> Numbers:
    return np.where(kept, logits, -np.inf)


def first_of(logits: Numbers, count: int) -> Numbers:
    return only(logits, logits >= np.sort(logits)[-count])


def at_least(logits: Numbers, share: float) -> Numbers:
    """Tokens with this share of the likeliest one's probability."""
    return only(logits, softmax(logits) >= share * softmax(logits).max())


def covering(logits: Numbers, by: Numbers, mass: float) -> Numbers:
    """The first tokens by `by`, from small to large, that together have `mass`."""
    order = np.argsort(by)
    p = softmax(logits)[order]
    kept = np.zeros(logits.size, bool)
    kept[order[np.cumsum(p) - p < mass]] = True
    return only(logits, kept)


def typical(logits: Numbers, mass: float) -> Numbers:
    p = softmax(logits)
    surprise = -np.log(p, where=p > 0, out=np.zeros(p.size))
    return covering(logits, np.abs(surprise - np.sum(p * surprise)), mass)


def without_top_choices(logits: Numbers, threshold: float) -> Numbers:
    above = np.flatnonzero(softmax(logits) >= threshold)
    changed = logits.copy()
    changed[np.delete(above, np.argmin(logits[above]))] = -np.inf
    return changed


def biased(logits: Numbers) -> Numbers:
    changed = logits.copy()
    changed[[3, 8]] += [5.0, -100.0]
    return changed


def penalised(logits: Numbers) -> Numbers:
    """After 4 4 4 6: repeat 1.5, presence 0.3, frequency 0.2."""
    changed = logits.copy()
    for token, count in ((4, 3), (6, 1)):
        changed[token] = changed[token] / 1.5 if changed[token] > 0 else changed[token] * 1.5
        changed[token] -= 0.3 + 0.2 * count
    return changed


def dried(logits: Numbers) -> Numbers:
    """After 1 2 3 4 1 2 3, where a 4 would make it a repetition of four: three tokens, of which two are allowed."""
    changed = logits.copy()
    changed[4] -= 0.9 * 1.75
    return changed


ROW = (np.random.default_rng(5).normal(size=300) * 1.6).astype(np.float32)
ROW[4] = ROW.max() - np.float32(0.5)  # so that it matters what becomes of it
X = ROW.astype(np.float64)
SOME = 0.35
DISTRIBUTIONS: dict[str, tuple[SampleSpec, tuple[int, ...], Numbers]] = {
    "temperature": (SampleSpec(temperature=0.6), (), softmax(X / 0.6)),
    "top-k": (SampleSpec(top_k=12), (), softmax(first_of(X, 12))),
    "top-p": (SampleSpec(top_p=0.7), (), softmax(covering(X, -X, 0.7))),
    "min-p": (SampleSpec(min_p=0.1), (), softmax(at_least(X, 0.1))),
    "typical-p": (SampleSpec(typical_p=0.5), (), softmax(typical(X, 0.5))),
    "XTC": (
        SampleSpec(xtc_probability=SOME, xtc_threshold=0.03),
        (),
        SOME * softmax(without_top_choices(X, 0.03)) + (1 - SOME) * softmax(X),
    ),
    "mirostat": (
        SampleSpec(mirostat=2, mirostat_tau=3.0, temperature=0.8),
        (),
        softmax(only(X, -np.log2(softmax(X)) <= 6) / 0.8),
    ),
    "logit_bias": (SampleSpec(logit_bias={3: 5.0, 8: -100.0}), (), softmax(biased(X))),
    "penalties": (
        SampleSpec(repeat_penalty=1.5, presence_penalty=0.3, frequency_penalty=0.2),
        (4, 4, 4, 6),
        softmax(penalised(X)),
    ),
    "DRY": (SampleSpec(dry_multiplier=0.9), (1, 2, 3, 4, 1, 2, 3), softmax(dried(X))),
    "top-k, top-p, temperature": (
        SampleSpec(top_k=30, top_p=0.8, temperature=0.7),
        (),
        softmax(covering(first_of(X, 30), -X, 0.8) / 0.7),
    ),
    "all that cut": (
        SampleSpec(
            top_k=100, typical_p=0.9, top_p=0.9, min_p=0.02, xtc_probability=1.0, xtc_threshold=0.05, temperature=1.4
        ),
        (),
        softmax(without_top_choices(at_least(covering(typical(first_of(X, 100), 0.9), -X, 0.9), 0.02), 0.05) / 1.4),
    ),
}


def drawn_one_by_one(spec: SampleSpec, draws: int, history: Sequence[int]) -> list[int | None]:
    return [choose(ROW, spec, position, history)[0] for position in range(draws)]


def drawn_together(spec: SampleSpec, draws: int, history: Sequence[int]) -> list[int | None]:
    """By the torch engine's chain, 500 rows at a time."""
    rows = torch.from_numpy(ROW)[None].expand(500, -1)
    tokens: list[int | None] = []
    for start in range(0, draws, 500):
        tokens += [token for token, _ in choose_rows(rows, [Draw(spec, start + n, history) for n in range(500)])]
    return tokens


@pytest.mark.parametrize("draw", [drawn_one_by_one, drawn_together])
@pytest.mark.parametrize("draws", [2_000, pytest.param(20_000, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", DISTRIBUTIONS)
def test_draws_follow_the_distribution(
    name: str, draws: int, draw: Callable[[SampleSpec, int, Sequence[int]], list[int | None]]
) -> None:
    """Chi-square against what was worked out in numpy; with a fixed seed the number never changes.

    Tokens that are expected fewer than five times are counted together; impossible ones must not come.
    """
    chosen, history, p = DISTRIBUTIONS[name]
    chosen = replace(chosen, seed=20261130)
    drawn = draw(chosen, draws, history)
    counts = np.bincount(np.array(drawn, int), minlength=p.size)
    assert not counts[p == 0].any()
    often = p * draws >= 5
    observed, expected = counts[often].astype(float), p[often] * draws
    if draws - expected.sum() > 1e-6:
        observed, expected = (np.append(x, draws - x.sum()) for x in (observed, expected))
    chi_square = float(((observed - expected) ** 2 / expected).sum())
    degrees = observed.size - 1
    assert degrees > 2
    assert chi_square < degrees + 3.1 * math.sqrt(2 * degrees) + 5


def test_mirostat_keeps_the_surprise_it_is_told_to() -> None:
    logits = (np.random.default_rng(3).normal(size=2000) * 3).astype(np.float32)
    p = softmax(logits.astype(np.float64))
    for tau in (2.0, 4.0):
        carry, bits = 0.0, []
        for position in range(2000):
            token, carry = choose(logits, SampleSpec(mirostat=2, mirostat_tau=tau), position, (), (), carry)
            assert token is not None
            bits.append(-math.log2(p[token]))
        assert np.mean(bits[500:]) == pytest.approx(tau, rel=0.03)
