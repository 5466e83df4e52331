"""The sampler chain: from one row of logits to one token.

    top-k         keep the k most likely tokens
    top-p         of those, keep a token while the probability before it is below p (Holtzman et al., "The Curious Case
                  of Neural Text Degeneration", 2020), measured before temperature
    temperature   p_i proportional to exp(logit_i / T)
    draw          the first token at which the cumulative probability, in descending order, exceeds
                  draws.uniform(seed, choice, position)

Descending order means by logit, ties by id, so a draw is a pure function of the row, the spec and the position.

A vocabulary holds up to some 260,000 tokens and a nucleus a few dozen, so nothing is sorted whole unless it must be:
the head of the order is found with two passes over the row, and grows only while the chain needs more of it.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from edgellm.contracts.draws import uniform
from edgellm.contracts.engine import Logprob, SampleSpec

Floats = npt.NDArray[np.float32]
Weights = npt.NDArray[np.float64]
Ids = npt.NDArray[np.intp]

COLDEST = 1e-6  # below this the division overflows; the result is argmax long before
FIRST_HEAD = 256  # tokens sorted at first when the chain has no top-k
GROWTH = 16


def choose(
    logits: Floats,
    spec: SampleSpec,
    position: int,
    history: Sequence[int] = (),  # noqa: ARG001
    drafted: Sequence[int] = (),  # noqa: ARG001
    carry: float = 0.0,
) -> tuple[int | None, float]:
    """The token drawn from `logits`, float32, shape (vocabulary,), read only, and the carry for the next one.

    `history` then `drafted` are the tokens before. The token is None when the logits are not finite numbers.
    A logit of -inf is a token that cannot be drawn; NaN anywhere, +inf, or -inf everywhere is None.
    """
    best = int(logits.argmax())  # the first NaN if there is one
    peak = float(logits[best])
    if not np.isfinite(peak):
        return None, carry
    if spec.temperature == 0 or spec.top_k == 1:
        return best, carry
    number = uniform(spec.seed, spec.choice, position)
    with np.errstate(over="ignore", under="ignore"):  # far below the peak a weight is 0, however it gets there
        if not 0 < spec.top_k < logits.size:
            return _choose_from_all(logits, peak, spec, number), carry
        ids = descending(logits, spec.top_k)[: spec.top_k]
        ids = _nucleus(logits, ids, peak, spec.top_p, None)
        return int(ids[_draw(_weights(logits[ids], peak, spec.temperature), number, None)]), carry


def log_probabilities(logits: Floats, token: int, count: int) -> Logprob:
    """Of `token` and of the `count` likeliest, in the raw logits; natural logarithms."""
    peak = float(logits.max())
    norm = peak + float(np.log(np.exp(logits - np.float32(peak)).sum(dtype=np.float64)))
    ids = descending(logits, count)[:count] if count else np.arange(0)
    return Logprob(float(logits[token]) - norm, tuple((int(i), float(logits[i]) - norm) for i in ids))


def descending(logits: Floats, count: int) -> Ids:
    """Ids of at least the `count` largest logits, in order; more of them where that costs nothing.

    The row is cut into groups, more than `count` of them, and the largest of each is found. `count` groups hold
    something at least as large as the `count`-th largest of these; so what is smaller is not among the `count` largest.
    """
    size = logits.size
    width = min(64, size // (4 * count))
    if width < 4:
        return _sorted(logits, np.arange(size))
    groups = size // width
    largest = logits[: groups * width].reshape(width, groups).max(axis=0)
    bound = np.partition(largest, groups - count)[groups - count]
    ids = np.flatnonzero(logits >= bound)
    return _sorted(logits[ids], ids)


def _sorted(values: Floats, ids: Ids) -> Ids:
    """`ids`, ascending, reordered by their values from large to small, ties by id.

    Value and index become one integer, because numpy sorts integers with vector instructions, and nothing else stably
    at that speed. The bits of a float order like a signed integer once those of negative numbers are flipped.
    """
    bits = (values + np.float32(0)).view(np.int32)  # adding 0 makes -0 and 0 the same
    keys = (bits ^ ((bits >> 31) & np.int32(0x7FFFFFFF))).astype(np.int64)
    np.negative(keys, out=keys)
    keys <<= 32
    keys += np.arange(ids.size)
    keys.sort()
    keys &= 0xFFFFFFFF
    return ids[keys]


def _choose_from_all(logits: Floats, peak: float, spec: SampleSpec, number: float) -> int:
    """The chain without top-k: masses are of the whole vocabulary, the order is known as far as it was needed."""
    scaled = logits - np.float32(peak)
    nucleus_mass = None
    if spec.top_p < 1:
        nucleus_mass = float(np.exp(scaled).sum(dtype=np.float64))
    else:
        scaled *= np.float32(1 / max(spec.temperature, COLDEST))
        total = float(np.exp(scaled, out=scaled).sum(dtype=np.float64))
    count = FIRST_HEAD
    while True:
        ids = descending(logits, count)
        if nucleus_mass is not None:
            kept = _nucleus(logits, ids, peak, spec.top_p, nucleus_mass)
            if kept.size < ids.size or ids.size == logits.size:
                weights = _weights(logits[kept], peak, spec.temperature)
                return int(kept[_draw(weights, number, None)])
        else:
            weights = _weights(logits[ids], peak, spec.temperature)
            index = _draw(weights, number, total)
            if index < ids.size:
                return int(ids[index])
            if ids.size == logits.size:
                return int(ids[_draw(weights, number, None)])
        count = min(max(count, ids.size) * GROWTH, logits.size)


def _nucleus(logits: Floats, ids: Ids, peak: float, top_p: float, mass: float | None) -> Ids:
    """The part of `ids`, descending, whose mass before it is below `top_p` of `mass`; None: of the mass of `ids`."""
    if top_p >= 1:
        return ids
    reached = np.cumsum(_weights(logits[ids], peak, 1.0))
    target = top_p * (reached[-1] if mass is None else mass)
    return ids[: int(np.searchsorted(reached, target, side="left")) + 1]


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
