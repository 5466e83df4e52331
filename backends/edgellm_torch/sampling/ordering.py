"""Tokens by their logits, from large to small, ties by id: a total order, so that every device sorts the same way."""

from __future__ import annotations

from typing import Final

import torch
from torch import Tensor

LOGITS_AT_ONCE: Final = 1 << 19  # what is made of them takes some fifty bytes for each


def rows_at_once(vocabulary: int) -> int:
    """How many rows of logits are worked on together: memory for them does not grow with the step."""
    return max(1, LOGITS_AT_ONCE // vocabulary)


def keys(logits: Tensor) -> Tensor:
    """int64, shape as float32 `logits`: larger where the logit is, or where it is equal and the token's id is smaller.

    The bits of a float order like a signed integer once those of negative numbers are flipped; the id fills the rest.
    """
    bits = (logits + 0.0).view(torch.int32).to(torch.int64)  # adding 0 makes -0 and 0 the same
    ordered = torch.where(bits < 0, bits ^ 0x7FFFFFFF, bits)
    ids = torch.arange(logits.shape[-1] - 1, -1, -1, device=logits.device)
    return (ordered << 32) + ids


def head(logits: Tensor, count: int) -> Tensor:
    """Ids of the `count` largest of each row, in order; int64 [rows, count]. `logits`: float32 [rows, vocabulary]."""
    size = logits.shape[-1]
    found = keys(logits)
    if count < size:
        found = torch.topk(found, count, dim=-1, sorted=True).values
    else:
        found = torch.sort(found, dim=-1, descending=True).values
    return size - 1 - (found & 0xFFFFFFFF)
