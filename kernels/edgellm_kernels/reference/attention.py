"""Causal attention over paged keys and values, for prefill chunks and decode rows alike.

Keys are taken in tiles of `KEYS` at absolute positions, and queries stand in tiles by their own position; so a row
meets the same products in the same order however its text was cut into calls, and however it is paged. What a row may
not see weighs exactly 0 in them.

Sources: online softmax, Milakov and Gimelshein, arXiv:1805.02867; tiles, Dao et al., arXiv:2205.14135.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor

from edgellm_kernels.pages import Pages, Ragged
from edgellm_kernels.reference.activation import soft_cap as capped
from edgellm_kernels.reference.exact import exp, row_sum
from edgellm_kernels.reference.kv import kv_read

KEYS: Final = 256
_ROWS: Final = 16  # of a product, at least: queries of a tile times heads that share a KV head
_SCORES: Final = 1 << 20  # computed at once: 4 MiB


@dataclass(frozen=True)
class _Rules:
    scale: float
    window: int
    soft_cap: float


def attention(
    q: Tensor, pages: Pages, ragged: Ragged, *, scale: float, window: int = 0, soft_cap: float = 0.0
) -> Tensor:
    """q [rows, heads, k_size] over what is in `pages`, the rows' own keys and values included: [rows, heads, v_size].

    The token at position p sees positions p - window + 1 to p; with window 0, all from 0 on. Query head h reads
    KV head h // (heads / kv_heads). With a soft cap c, scores are c * tanh(score / c).
    """
    rows, heads, size = q.shape
    if size != pages.k_size or heads % pages.kv_heads or rows != ragged.rows:
        expected = f"{ragged.rows} rows of {pages.k_size} with a multiple of {pages.kv_heads} heads"
        raise ValueError(f"queries {tuple(q.shape)} do not fit: {expected}")
    rules = _Rules(scale, window, soft_cap)
    result = q.new_empty((rows, heads, pages.v_size))
    row = 0
    for sequence, count in enumerate(ragged.counts):
        result[row : row + count] = _sequence(q[row : row + count], pages, ragged, sequence, rules)
        row += count
    return result


def _sequence(q: Tensor, pages: Pages, ragged: Ragged, sequence: int, rules: _Rules) -> Tensor:
    """One sequence's rows, some query tiles at a time."""
    count, heads, _ = q.shape
    start = ragged.starts[sequence]
    queries = _queries(heads // pages.kv_heads)
    lead = start % queries
    placed = _placed(q, lead, queries, pages.kv_heads)
    step = max(1, _SCORES // (heads * queries * KEYS))
    parts = []
    for first in range(0, placed.shape[0], step):
        tiles = placed[first : first + step]
        place = start - lead + first * queries
        low, end = max(start, place), min(start + count, place + tiles.shape[0] * queries)
        parts.append(_Tiles(tiles, place, queries).over(pages, ragged, sequence, (low, end), rules))
    found = torch.cat(parts).unflatten(2, (queries, -1))  # [tiles, kv_heads, queries, group, v_size]
    return found.transpose(1, 2).reshape(-1, heads, pages.v_size)[lead : lead + count]


def _queries(group: int) -> int:
    """Positions of a query tile, a power of two, where `group` heads share a KV head."""
    return 1 << (max(1, -(-_ROWS // group)) - 1).bit_length()


def _placed(q: Tensor, lead: int, queries: int, kv_heads: int) -> Tensor:
    """Rows in tiles by position, the first after `lead` empty ones: [tiles, kv_heads, queries * group, size]."""
    count, heads, size = q.shape
    tiles = -(-(lead + count) // queries)
    placed = q.new_zeros((tiles * queries, heads, size))
    placed[lead : lead + count] = q
    split = placed.view(tiles, queries, kv_heads, heads // kv_heads, size)
    return split.transpose(1, 2).reshape(tiles, kv_heads, -1, size)


class _Tiles:
    """Query tiles that follow each other from position `place` on, and the softmax that goes on over them."""

    def __init__(self, q: Tensor, place: int, queries: int) -> None:
        self.q = q
        self.place = place
        self.queries = queries
        self.group = q.shape[2] // queries
        # The highest score yet, the sum of the weights relative to it, and that of the values weighted so.
        self.state: tuple[Tensor, Tensor, Tensor] | None = None

    def over(self, pages: Pages, ragged: Ragged, sequence: int, span: tuple[int, int], rules: _Rules) -> Tensor:
        """The result for the rows at positions `span`; what the other places of the tiles hold is of no use."""
        first, end = span
        seen = max(0, first - rules.window + 1) if rules.window else 0
        for tile in range(seen // KEYS, (end - 1) // KEYS + 1):
            low, high = max(seen, tile * KEYS), min(end, (tile + 1) * KEYS)
            k, v = kv_read(pages, ragged.places(sequence, low, high, pages.block_size))
            self.state = self._joined(_tile(k, low % KEYS), _tile(v, low % KEYS), tile * KEYS, rules)
        assert self.state is not None
        _, total, values = self.state
        return values / total

    def _joined(self, k: Tensor, v: Tensor, place: int, rules: _Rules) -> tuple[Tensor, Tensor, Tensor]:
        """The state with one tile more of keys and values [kv_heads, KEYS, size], at positions from `place` on."""
        scores = _product(self.q, k.transpose(1, 2)).mul_(rules.scale)
        if rules.soft_cap:
            scores = capped(scores, rules.soft_cap)
        if not self._sees_all(place, rules.window):
            scores.masked_fill_(self._hidden(place, rules.window)[:, None], -math.inf)
        highest = scores.amax(-1, keepdim=True)
        if self.state is not None:
            highest = torch.maximum(self.state[0], highest)
        base = torch.where(highest == -math.inf, 0.0, highest)  # nothing seen yet
        weights = exp(scores.sub_(base))
        total, values = row_sum(weights)[..., None], _product(weights, v)
        if self.state is not None:
            before, total_before, values_before = self.state
            kept = exp(before - base)
            total += total_before * kept
            values += values_before * kept
        return highest, total, values

    def _sees_all(self, place: int, window: int) -> bool:
        """Whether every query sees every key of the tile at `place`."""
        last = self.place + self.q.shape[0] * self.queries - 1
        return place + KEYS - 1 <= self.place and (not window or place > last - window)

    def _hidden(self, place: int, window: int) -> Tensor:
        """What may not be seen: bool [tiles, queries * group, KEYS]."""
        device = self.q.device
        at = torch.arange(self.place, self.place + self.q.shape[0] * self.queries, device=device)[:, None]
        keys = torch.arange(place, place + KEYS, device=device)
        hidden = keys > at
        if window:
            hidden |= keys <= at - window
        return hidden.repeat_interleave(self.group, dim=0).view(-1, self.queries * self.group, KEYS)


def _tile(x: Tensor, offset: int) -> Tensor:
    """x [n, kv_heads, size] from `offset` on in a tile of zeros: [kv_heads, KEYS, size]."""
    if x.shape[0] == KEYS:
        return x.transpose(0, 1).contiguous()
    tile = x.new_zeros((x.shape[1], KEYS, x.shape[2]))
    tile[:, offset : offset + x.shape[0]] = x.transpose(0, 1)
    return tile


def _product(tiles: Tensor, matrices: Tensor) -> Tensor:
    """Each of tiles [tiles, kv_heads, m, j] times [kv_heads, j, n]. One by one: a batch's size can change bits."""
    found = tiles.new_empty((*tiles.shape[:3], matrices.shape[2]))
    for tile, target in zip(tiles, found, strict=True):
        torch.bmm(tile, matrices, out=target)
    return found
