"""What changes logits before any are dropped: bias, penalties for tokens that were there, and DRY.

Only the tokens concerned are touched, in one copy of the row; what is looked back on is read once per token drawn.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from edgellm.contracts.chain import repetitions, token_counts
from edgellm.contracts.runner import SampleSpec
from edgellm_llamacpp.ordering import Floats

LARGEST = float(np.finfo(np.float32).max)


def reweighed(logits: Floats, spec: SampleSpec, history: Sequence[int], drafted: Sequence[int]) -> Floats:
    """A copy of `logits` with the spec's bias, penalties and DRY, in this order. What is -inf stays so."""
    row = logits.copy()
    if spec.logit_bias:
        _add(row, spec.logit_bias)
    if counts := token_counts(spec, history, drafted):
        _penalise(row, spec, counts)
    if changes := repetitions(spec, history, drafted):
        _add(row, changes)
    return row


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
