"""Bias, penalties and DRY on the logits of all rows of a step: only the tokens concerned are touched.

What is taken off which token is reckoned by contracts/chain.py, from the tokens before; here it is applied, in double
precision and rounded to single after each of the three, so that every engine's logits come out the same to the bit.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec
import torch
from torch import Tensor

from edgellm.contracts.chain import repetitions, token_counts
from edgellm.contracts.runner import SampleSpec
from edgellm_torch.transfer import upload


class Draw(msgspec.Struct, frozen=True):
    """One token to be drawn: how, as which of the generated, after which tokens (`history`, then `drafted`)."""

    spec: SampleSpec
    position: int = 0
    history: Sequence[int] = ()
    drafted: Sequence[int] = ()
    carry: float = 0.0


Cells = list[tuple[int, int, float]]  # row, token, number
LARGEST = torch.finfo(torch.float32).max


def reweighed(logits: Tensor, draws: Sequence[Draw]) -> Tensor:
    """`logits`, float32 [rows, vocabulary], or a changed copy. What is -inf stays so."""
    if not any(draw.spec.logit_bias or draw.spec.looks_back for draw in draws):
        return logits
    changed = logits.clone()
    _add(changed, _cells([draw.spec.logit_bias for draw in draws]))
    counts = [token_counts(draw.spec, draw.history, draw.drafted) for draw in draws]
    _penalise(changed, _cells(counts), draws)
    _add(changed, _cells([repetitions(draw.spec, draw.history, draw.drafted) for draw in draws]))
    return changed


def _cells(by_row: Sequence[Mapping[int, float]]) -> Cells:
    return [(row, token, float(number)) for row, numbers in enumerate(by_row) for token, number in numbers.items()]


def _places(cells: Cells, device: torch.device) -> tuple[Tensor, Tensor, Tensor]:
    rows, tokens, numbers = zip(*cells, strict=True)
    place = upload([rows, tokens], torch.int64, device)
    return place[0], place[1], upload(numbers, torch.float64, device)


def _add(logits: Tensor, cells: Cells) -> None:
    if cells:
        rows, tokens, numbers = _places(cells, logits.device)
        logits[rows, tokens] = _within(logits[rows, tokens].double() + numbers)


def _penalise(logits: Tensor, cells: Cells, draws: Sequence[Draw]) -> None:
    """Repeat divides what is positive and multiplies what is not; presence and frequency are taken off."""
    if not cells:
        return
    rows, tokens, counts = _places(cells, logits.device)
    specs = [draws[row].spec for row, _, _ in cells]
    repeat, presence, frequency = (
        upload([getattr(spec, name) for spec in specs], torch.float64, logits.device)
        for name in ("repeat_penalty", "presence_penalty", "frequency_penalty")
    )
    values = logits[rows, tokens].double()
    values = torch.where(values > 0, values / repeat, values * repeat) - presence - frequency * counts
    logits[rows, tokens] = _within(values)


def _within(values: Tensor) -> Tensor:
    """As float32: what is finite stays finite, however large it was made."""
    return torch.where(values.isfinite(), values.clamp(-LARGEST, LARGEST), values).float()
