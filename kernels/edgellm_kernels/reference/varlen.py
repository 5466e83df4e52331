"""Whole texts of different lengths that lie behind each other: attention, of which nothing is kept, and means.

Each text is computed by itself, in products whose shapes depend on its length alone: so its bits do not depend on the
texts beside it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

import torch
from torch import Tensor

from edgellm_kernels.reference.exact import row_sum, softmax

_SCORES: Final = 1 << 20  # computed at once: 4 MiB


def varlen_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    counts: Sequence[int],
    *,
    scale: float,
    slopes: Tensor | None = None,
    reach: int | None = None,
) -> Tensor:
    """q [rows, heads, k_size] over k [rows, kv_heads, k_size] and v [rows, kv_heads, v_size]: [rows, heads, v_size].

    `counts`: rows of each text. Query head h reads KV head h // (heads / kv_heads). A row sees all of its text,
    or with a `reach` what is at most so far away.
    `slopes` [heads]: scores fall by so much with each position of distance (Press et al., "ALiBi", arXiv:2108.12409).
    """
    rows, heads, size = q.shape
    if k.shape[::2] != (rows, size) or v.shape[:2] != k.shape[:2] or heads % k.shape[1]:
        raise ValueError(f"queries {tuple(q.shape)}, keys {tuple(k.shape)} and values {tuple(v.shape)} do not fit")
    if sum(counts) != rows or min(counts, default=1) < 1:
        raise ValueError(f"texts of {list(counts)} rows are not the {rows} that there are")
    result = q.new_empty((rows, heads, v.shape[2]))
    start = 0
    for count in counts:
        text = slice(start, start + count)
        result[text] = _text(q[text], k[text], v[text], scale, slopes, reach)
        start += count
    return result


def varlen_mean(x: Tensor, counts: Sequence[int]) -> Tensor:
    """The mean of each text's rows: x [rows, n] -> [texts, n]."""
    if sum(counts) != x.shape[0] or min(counts, default=1) < 1:
        raise ValueError(f"texts of {list(counts)} rows are not the {x.shape[0]} that there are")
    return torch.stack([row_sum(text.t()) / text.shape[0] for text in x.split(list(counts))])


def _text(q: Tensor, k: Tensor, v: Tensor, scale: float, slopes: Tensor | None, reach: int | None) -> Tensor:
    """One text, some queries at a time."""
    count, heads, _ = q.shape
    group = heads // k.shape[1]
    # One matrix for each head: [heads, count, size].
    keys, values = (x.transpose(0, 1).repeat_interleave(group, dim=0) for x in (k, v))
    queries, keys = q.transpose(0, 1).contiguous(), keys.transpose(1, 2)
    step = max(1, _SCORES // (heads * count))
    parts = []
    for start in range(0, count, step):
        scores = torch.bmm(queries[:, start : start + step], keys).mul_(scale)
        if slopes is not None or reach is not None:
            distance = _distance(start, scores.shape[1], count, q.device)
            if slopes is not None:
                scores -= slopes[:, None, None] * distance
            if reach is not None:
                scores.masked_fill_(distance > reach, -math.inf)
        parts.append(torch.bmm(softmax(scores), values))
    return torch.cat(parts, dim=1).transpose(0, 1)


def _distance(start: int, rows: int, count: int, device: torch.device) -> Tensor:
    """Of each key from each query from position `start` on: float32 [rows, count]."""
    at = torch.arange(start, start + rows, device=device, dtype=torch.float32)
    return (at[:, None] - torch.arange(count, device=device, dtype=torch.float32)).abs_()
