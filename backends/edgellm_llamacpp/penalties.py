"""What changes logits before any are dropped: bias, penalties for tokens that were there, and DRY.

Only the tokens concerned are touched, in one copy of the row; what is looked back on is read once per token drawn.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt

from edgellm.contracts.engine import SampleSpec
from edgellm_llamacpp.ordering import Floats

LARGEST = float(np.finfo(np.float32).max)
STEEPEST = 88.0  # ln of the largest factor of a DRY penalty: beyond, float32 overflows


def reweighed(logits: Floats, spec: SampleSpec, history: Sequence[int], drafted: Sequence[int]) -> Floats:
    """A copy of `logits` with the spec's bias, penalties and DRY, in this order. What is -inf stays so."""
    row = logits.copy()
    if spec.logit_bias:
        _add(row, spec.logit_bias)
    if spec.repeat_last_n and (spec.repeat_penalty != 1 or spec.presence_penalty or spec.frequency_penalty):
        _penalise(row, spec, Counter(_latest(history, drafted, spec.repeat_last_n)))
    if spec.dry_last_n and spec.dry_multiplier:
        recent = _latest(history, drafted, spec.dry_last_n)
        recent.reverse()
        _add(row, dry(recent, spec))
    return row


def dry(recent: list[int], spec: SampleSpec) -> dict[int, float]:
    """What DRY adds to the logits of tokens that would continue a repetition. `recent` begins with the newest token.

    Where the latest L tokens stood before, the token that followed them then is penalised by
    multiplier * base ** (L - allowed), from L = allowed on, for the longest such L. A repetition does not reach back
    over a breaker, and breakers themselves are never penalised.
    """
    allowed = spec.dry_allowed_length
    since = _count_until(recent, spec.dry_breakers)
    if since < allowed:
        return {}
    longest: dict[int, int] = {}
    for start, length in _repeats(recent):
        length = min(length, since)
        followed = recent[start - 1]
        if length >= allowed and length > longest.get(followed, 0):
            longest[followed] = length
    steepness = math.log(spec.dry_base)
    most = STEEPEST / steepness if steepness > 0 else math.inf
    return {
        token: -spec.dry_multiplier * spec.dry_base ** min(length - allowed, most)
        for token, length in longest.items()
        if token not in spec.dry_breakers
    }


def _repeats(recent: list[int]) -> Iterable[tuple[int, int]]:
    """Each later start at which `recent` begins anew, and for how many tokens it goes on.

    The Z-algorithm (Gusfield, "Algorithms on Strings, Trees and Sequences", 1997), at the places only where the first
    token stands, which are found at the speed of C: linear whatever the text.
    """
    size = len(recent)
    matches: dict[int, int] = {}
    left = right = start = 0  # recent[left:right] equals the beginning, and no known match reaches further right
    first = recent[0] if recent else 0
    while True:
        try:
            start = recent.index(first, start + 1)
        except ValueError:
            return
        length = min(matches[start - left], right - start) if start < right else 1
        if start + length >= right:
            while start + length < size and recent[length] == recent[start + length]:
                length += 1
            left, right = start, start + length
        matches[start] = length
        yield start, length


def _count_until(tokens: Iterable[int], breakers: frozenset[int]) -> int:
    """How many tokens come before the first breaker."""
    count = 0
    for token in tokens:
        if token in breakers:
            break
        count += 1
    return count


def _latest(history: Sequence[int], drafted: Sequence[int], count: int) -> list[int]:
    """The last `count` tokens of `history` then `drafted`; all of them when negative."""
    if count < 0:
        return [*history, *drafted]
    older = count - len(drafted)
    return [*history[-older:], *drafted] if older > 0 else list(drafted[-count:])


def _penalise(row: Floats, spec: SampleSpec, counts: Counter[int]) -> None:
    """Repeat divides what is positive and multiplies what is not; presence and frequency are taken off."""
    ids = np.fromiter(counts, np.intp, len(counts))
    values = row[ids].astype(np.float64)
    if spec.repeat_penalty != 1:
        values = np.where(values > 0, values / spec.repeat_penalty, values * spec.repeat_penalty)
    values -= spec.presence_penalty
    if spec.frequency_penalty:
        values -= spec.frequency_penalty * np.fromiter(counts.values(), np.float64, len(counts))
    row[ids] = _within(values)


def _add(row: Floats, changes: dict[int, float]) -> None:
    ids = np.fromiter(changes, np.intp, len(changes))
    row[ids] = _within(row[ids].astype(np.float64) + np.fromiter(changes.values(), np.float64, len(changes)))


def _within(values: npt.NDArray[np.float64]) -> Floats:
    """As float32: what is finite stays finite, however large it was made."""
    finite = np.isfinite(values)
    np.clip(values, -LARGEST, LARGEST, out=values, where=finite)
    return values.astype(np.float32)
