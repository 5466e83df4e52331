"""Log probabilities in the raw logits, for rows that ask for them."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from edgellm.contracts.engine import Logprob
from edgellm_torch.sampling.ordering import head, rows_at_once


def log_probabilities(logits: Tensor, tokens: Sequence[int], counts: Sequence[int]) -> list[Logprob]:
    """Of each row's token, and of the `counts` likeliest there; natural logarithms.

    `logits`: float32 [rows, vocabulary].
    """
    some = rows_at_once(logits.shape[1])
    if len(tokens) > some:
        parts = [slice(start, start + some) for start in range(0, len(tokens), some)]
        return [found for part in parts for found in log_probabilities(logits[part], tokens[part], counts[part])]
    exact = logits.double()
    peak = exact.amax(-1, keepdim=True)
    norm = peak + (exact - peak).exp().cumsum(-1)[:, -1:].log()
    chosen = exact.gather(1, torch.tensor(tokens, device=logits.device)[:, None]) - norm
    most = min(max(counts), logits.shape[1])
    if not most:
        return [Logprob(value) for value in chosen[:, 0].tolist()]
    ids = head(logits, most)
    likeliest = (exact.gather(1, ids) - norm).tolist()
    return [
        Logprob(value, tuple(zip(row[:count], numbers[:count], strict=True)))
        for value, row, numbers, count in zip(chosen[:, 0].tolist(), ids.tolist(), likeliest, counts, strict=True)
    ]
