"""The sampler chain: from one row of logits to one token.

    logit_bias, penalties, DRY    change logits; see penalties.py
    top-k         keep the k most likely tokens
    typical-p     of those, keep the nearest to the expected surprise, while the probability before is below p (Meister
                  et al., "Locally Typical Sampling", 2022)
    top-p         keep a token while the probability before it is below p (Holtzman et al., "The Curious Case of Neural
                  Text Degeneration", 2020)
    min-p         keep what is at least p times as likely as the likeliest (Nguyen et al., "Turning Up the Heat", 2024)
    XTC           of several tokens at or above a threshold drop all but the least likely, with a given probability
    temperature   p_i proportional to exp(logit_i / T); 0 takes the likeliest after the first line
    draw          the first token at which the cumulative probability, in descending order, exceeds
                  draws.uniform(seed, choice, position)

Mirostat 2 (Basu et al., "Mirostat", 2021) replaces what stands between DRY and temperature. Every probability is of
what the samplers before have left, and before temperature. Descending order means by logit, ties by id, so a draw is a
pure function of the row, the tokens before, the spec and the position.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from edgellm.contracts.chain import COLDEST, LUCK
from edgellm.contracts.draws import uniform
from edgellm.contracts.runner import Logprob, SampleSpec
from edgellm_llamacpp.ordering import Floats, Ids, descending, in_order
from edgellm_llamacpp.penalties import reweighed

Weights = npt.NDArray[np.float64]

FIRST_HEAD = 256  # tokens sorted at first when the chain has no top-k
GROWTH = 16
NOTHING = -200.0  # a logit this far below the peak weighs 0 in single precision


def choose(
    logits: Floats,
    spec: SampleSpec,
    position: int,
    history: Sequence[int] = (),
    drafted: Sequence[int] = (),
    carry: float = 0.0,
) -> tuple[int | None, float]:
    """The token drawn from `logits`, float32, shape (vocabulary,), read only, and the carry for the next one.

    `history` then `drafted` are the tokens before. The token is None when the logits are not finite numbers.
    A logit of -inf is a token that cannot be drawn; NaN anywhere, +inf, or -inf everywhere is None.
    """
    if spec.logit_bias or spec.looks_back:
        logits = reweighed(logits, spec, history, drafted)
    best = int(logits.argmax())  # the first NaN if there is one
    peak = float(logits[best])
    if not math.isfinite(peak):
        return None, carry
    if spec.temperature == 0:
        return best, carry
    number = uniform(spec.seed, spec.choice, position)
    with np.errstate(over="ignore", under="ignore"):  # far below the peak a weight is 0, however it gets there
        if spec.mirostat:
            return _mirostat(logits, peak, spec, number, carry)
        if spec.top_k == 1:
            return best, carry
        ids = _kept(logits, peak, spec)
        if spec.xtc_probability > 0 and uniform(spec.seed, spec.choice, position, LUCK) < spec.xtc_probability:
            if ids is None:
                logits, peak = _without_top(logits, peak, spec.xtc_threshold)
            else:
                ids = ids[_over(logits, ids, spec.xtc_threshold) :]
        if ids is None:
            return _draw_from_all(logits, peak, spec.temperature, number), carry
        weights = _weights(logits[ids], float(logits[ids[0]]), spec.temperature)
        return int(ids[_draw(weights, number, None)]), carry


def log_probabilities(logits: Floats, token: int, count: int) -> Logprob:
    """Of `token` and of the `count` likeliest, in the raw logits; natural logarithms."""
    peak = float(logits.max())
    with np.errstate(over="ignore", under="ignore"):
        norm = peak + math.log(float(np.exp(logits - np.float32(peak)).sum(dtype=np.float64)))
    ids = descending(logits, count)[:count] if count else np.arange(0)
    return Logprob(float(logits[token]) - norm, tuple((int(i), float(logits[i]) - norm) for i in ids))


# -- what is kept: ids in descending order


def _kept(logits: Floats, peak: float, spec: SampleSpec) -> Ids | None:
    """What top-k, typical-p, top-p and min-p leave; None: everything."""
    ids = descending(logits, spec.top_k)[: spec.top_k] if 0 < spec.top_k < logits.size else None
    if spec.typical_p < 1:
        ids = _typical(logits, ids, peak, spec.typical_p)
    if spec.top_p < 1:
        ids = _nucleus_of_all(logits, peak, spec.top_p) if ids is None else _nucleus(logits, ids, spec.top_p, None)
    if spec.min_p > 0:
        if ids is None:
            ids = _at_least(logits, peak + math.log(spec.min_p))
        else:
            ids = ids[: np.count_nonzero(logits[ids] >= float(logits[ids[0]]) + math.log(spec.min_p))]
    return ids


def _at_least(logits: Floats, bound: float) -> Ids:
    ids = np.flatnonzero(logits >= np.float32(bound))
    return in_order(logits[ids], ids)


def _typical(logits: Floats, ids: Ids | None, peak: float, typical_p: float) -> Ids:
    """Of `ids` (None: all) those of nearly the expected surprise, which is to say: of nearly the expected logit."""
    scaled = logits - np.float32(peak) if ids is None else logits[ids] - logits[ids[0]]
    weights = np.exp(scaled)
    total = float(weights.sum(dtype=np.float64))
    # Not np.dot: it runs on threads of its own, and their number would decide how it rounds.
    expected = float((weights * np.maximum(scaled, np.float32(NOTHING))).sum(dtype=np.float64)) / total
    nearness = -np.abs(scaled - np.float32(expected))
    count = FIRST_HEAD
    while True:
        nearest = descending(nearness, min(count, nearness.size))
        reached = np.cumsum(weights[nearest], dtype=np.float64)
        if reached[-1] >= typical_p * total or nearest.size == nearness.size:
            break
        count = max(count, nearest.size) * GROWTH
    kept = nearest[: int(np.searchsorted(reached, typical_p * total, side="left")) + 1]
    kept.sort()
    return in_order(logits[kept], kept) if ids is None else ids[kept]


def _nucleus_of_all(logits: Floats, peak: float, top_p: float) -> Ids:
    """The nucleus of the whole vocabulary: the order is known as far as it was needed."""
    mass = float(np.exp(logits - np.float32(peak)).sum(dtype=np.float64))
    count = FIRST_HEAD
    while True:
        ids = descending(logits, count)
        kept = _nucleus(logits, ids, top_p, mass)
        if kept.size < ids.size or ids.size == logits.size:
            return kept
        count = min(max(count, ids.size) * GROWTH, logits.size)


def _nucleus(logits: Floats, ids: Ids, top_p: float, mass: float | None) -> Ids:
    """The part of `ids` whose mass before it is below `top_p` of `mass`; None: of the mass of `ids`."""
    reached = np.cumsum(_weights(logits[ids], float(logits[ids[0]]), 1.0))
    target = top_p * (reached[-1] if mass is None else mass)
    return ids[: int(np.searchsorted(reached, target, side="left")) + 1]


# -- XTC


def _over(logits: Floats, ids: Ids, threshold: float) -> int:
    """How many of `ids` XTC drops: all at or above the threshold but the last."""
    weights = _weights(logits[ids], float(logits[ids[0]]), 1.0)
    return max(0, int(np.count_nonzero(weights >= threshold * weights.sum())) - 1)


def _without_top(logits: Floats, peak: float, threshold: float) -> tuple[Floats, float]:
    """The same where nothing was dropped before: a row in which they cannot be drawn, and its largest."""
    mass = float(np.exp(logits - np.float32(peak)).sum(dtype=np.float64))
    above = _at_least(logits, peak + math.log(threshold * mass) if threshold > 0 else -math.inf)
    if above.size < 2:
        return logits, peak
    row = logits.copy()
    row[above[:-1]] = -np.inf
    return row, float(logits[above[-1]])


# -- drawing


def _draw_from_all(logits: Floats, peak: float, temperature: float, number: float) -> int:
    """From the whole vocabulary: the total comes from one pass, the order is known as far as the draw needs it."""
    scaled = logits - np.float32(peak)
    scaled *= np.float32(1 / max(temperature, COLDEST))
    total = float(np.exp(scaled, out=scaled).sum(dtype=np.float64))
    count = FIRST_HEAD
    while True:
        ids = descending(logits, count)
        weights = _weights(logits[ids], peak, temperature)
        index = _draw(weights, number, total)
        if index < ids.size:
            return int(ids[index])
        if ids.size == logits.size:
            return int(ids[_draw(weights, number, None)])
        count = min(max(count, ids.size) * GROWTH, logits.size)


def _mirostat(logits: Floats, peak: float, spec: SampleSpec, number: float, carry: float) -> tuple[int, float]:
    """Drop what surprises more than mu bits, draw, and move mu so that the surprise approaches tau.

    Surprise is always the model's own, over the whole vocabulary and before temperature: so tau is what a reader of
    log probabilities finds in the text.
    """
    mu = carry or 2 * spec.mirostat_tau
    norm = peak + math.log(float(np.exp(logits - np.float32(peak)).sum(dtype=np.float64)))
    ids = _at_least(logits, min(norm - mu * math.log(2), peak))  # the likeliest stays, whatever mu
    token = int(ids[_draw(_weights(logits[ids], peak, spec.temperature), number, None)])
    surprise = (norm - float(logits[token])) / math.log(2)
    return token, (mu - spec.mirostat_eta * (surprise - spec.mirostat_tau)) or math.ulp(0.0)


def _weights(logits: Floats, peak: float, temperature: float) -> Weights:
    """exp((logit - peak) / temperature) in double precision: 1 for the largest."""
    scaled = logits.astype(np.float64)
    scaled -= peak
    scaled /= max(temperature, COLDEST)
    return np.exp(scaled, out=scaled)


def _draw(weights: Weights, number: float, total: float | None) -> int:
    """The index at which the cumulative weight exceeds `number` of `total`, or of the sum of all (None).

    With a `total`: len(weights) when it lies beyond them.
    """
    reached = np.cumsum(weights)
    if total is not None:
        return int(np.searchsorted(reached, number * total, side="right"))
    index = int(np.searchsorted(reached, number * reached[-1], side="right"))
    return index if index < weights.size else int(np.searchsorted(reached, reached[-1], side="left"))
