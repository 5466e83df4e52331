"""Log probabilities in the raw logits, for rows that ask for them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from edgellm.contracts.runner import Logprob
from edgellm_torch.sampling.ordering import head, rows_at_once
from edgellm_torch.transfer import upload


class Measured(NamedTuple):
    """Natural logarithms, on the device: of each row's token float64 [rows], and the likeliest tokens [rows, most]."""

    chosen: Tensor
    ids: Tensor
    values: Tensor


def measure(logits: Tensor, tokens: Tensor, most: int) -> Measured:
    """Of `tokens`, int64 [rows], and of the `most` likeliest in float32 `logits`, [rows, vocabulary]."""
    some = rows_at_once(logits.shape[1])
    if len(tokens) > some:
        starts = range(0, len(tokens), some)
        parts = [measure(logits[start : start + some], tokens[start : start + some], most) for start in starts]
        return Measured(*(torch.cat(part) for part in zip(*parts, strict=True)))
    exact = logits.double()
    peak = exact.amax(-1, keepdim=True)
    norm = peak + (exact - peak).exp().cumsum(-1)[:, -1:].log()
    chosen = (exact.gather(1, tokens[:, None]) - norm)[:, 0]
    most = min(most, logits.shape[1])
    ids = head(logits, most) if most else tokens.new_empty((len(tokens), 0))
    return Measured(chosen, ids, exact.gather(1, ids) - norm)


def named(measured: Measured, counts: Sequence[int]) -> list[Logprob]:
    """What was measured, once it is on the host: of each row the `counts` likeliest."""
    chosen, ids, values = (tensor.tolist() for tensor in measured)
    return [
        Logprob(value, tuple(zip(row[:count], numbers[:count], strict=True)))
        for value, row, numbers, count in zip(chosen, ids, values, counts, strict=True)
    ]


def log_probabilities(logits: Tensor, tokens: Sequence[int], counts: Sequence[int]) -> list[Logprob]:
    """Of each row's token, and of the `counts` likeliest there; waits for the device."""
    return named(measure(logits, upload(tokens, torch.int64, logits.device), max(counts)), counts)
