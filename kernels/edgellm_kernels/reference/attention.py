"""Causal attention over paged keys and values, for prefill chunks and decode rows alike.

Keys are taken in tiles of `KEYS` at absolute positions, and queries stand in tiles by their own position; so a row
meets the same products however its text was cut into calls, and however it is paged. Each tile of keys has a softmax of
its own; they are joined in order of position. What a row may not see weighs exactly 0 in them.

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
_VALUES: Final = 1 << 22  # held at once, of all tiles of keys before they are joined: 16 MiB
_READ: Final = 1 << 20  # of keys and values, read at once: 4 MiB in float32


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
    seen = min(start + count, rules.window + count) if rules.window else start + count
    held = (seen // KEYS + 2) * pages.v_size  # of a query: a value for each tile of keys
    step = max(1, min(_SCORES // KEYS, _VALUES // held) // (heads * queries))
    found = q.new_empty((*placed.shape[:-1], pages.v_size))
    for first in range(0, placed.shape[0], step):
        tiles = placed[first : first + step]
        place = start - lead + first * queries
        low, end = max(start, place), min(start + count, place + tiles.shape[0] * queries)
        found[first : first + step] = _Tiles(tiles, place, queries).over(pages, ragged, sequence, (low, end), rules)
    split = found.unflatten(2, (queries, -1))  # [tiles, kv_heads, queries, group, v_size]
    return split.transpose(1, 2).reshape(-1, heads, pages.v_size)[lead : lead + count]


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
    """Query tiles [tiles, kv_heads, m, size] that follow each other from position `place` on; m = queries * group."""

    def __init__(self, q: Tensor, place: int, queries: int) -> None:
        self.q = q
        self.place = place
        self.queries = queries
        self.group = q.shape[2] // queries

    def over(self, pages: Pages, ragged: Ragged, sequence: int, span: tuple[int, int], rules: _Rules) -> Tensor:
        """The result for the rows at positions `span`; what the other places of the tiles hold is of no use."""
        first, end = span
        seen = max(0, first - rules.window + 1) if rules.window else 0
        last = (end - 1) // KEYS + 1
        tile_size = KEYS * pages.kv_heads * (pages.k_size + pages.v_size)
        step = max(1, min(_SCORES // (self.q[..., 0].numel() * KEYS), _READ // tile_size))
        shape = (last - seen // KEYS, *self.q.shape[:-1])
        highest, totals, values = (self.q.new_empty((*shape, size)) for size in (1, 1, pages.v_size))
        for tile in range(seen // KEYS, last, step):
            low, high = max(seen, tile * KEYS), min(end, (tile + step) * KEYS)
            k, v = kv_read(pages, ragged.places(sequence, low, high, pages.block_size))
            of_step = slice(tile - seen // KEYS, tile - seen // KEYS + step)
            highest[of_step], totals[of_step] = self._part(
                _tiles(k, low % KEYS), _tiles(v, low % KEYS), tile * KEYS, rules, values[of_step]
            )
        return _joined(highest, totals, values)

    def _part(self, k: Tensor, v: Tensor, place: int, rules: _Rules, values: Tensor) -> tuple[Tensor, Tensor]:
        """Of each tile of keys and values [key tiles, kv_heads, KEYS, size], from position `place` on:

        the highest score and the sum of the weights relative to it, each [key tiles, tiles, kv_heads, m, 1]; and, into
        `values` of [key tiles, tiles, kv_heads, m, v_size], the sum of the values weighted so.
        """
        scores = self.q.new_empty((len(k), *self.q.shape[:-1], KEYS))
        _multiply(self.q.expand(len(k), *self.q.shape), k.transpose(2, 3), scores)
        scores.mul_(rules.scale)
        if rules.soft_cap:
            scores = capped(scores, rules.soft_cap)
        for tile, of_tile in enumerate(scores):
            at = place + tile * KEYS
            if not self._sees_all(at, rules.window):
                of_tile.masked_fill_(self._hidden(at, rules.window)[:, None], -math.inf)
        highest = scores.amax(-1, keepdim=True)
        weights = exp(scores.sub_(_finite(highest)))
        _multiply(weights, v, values)
        return highest, row_sum(weights)[..., None]

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


def _joined(highest: Tensor, totals: Tensor, values: Tensor) -> Tensor:
    """One softmax of those of all key tiles, first to last (see `_Tiles._part`): [tiles, kv_heads, m, v_size]."""
    kept = exp(highest - _finite(highest.amax(0)))
    totals, values = totals.mul_(kept), values.mul_(kept)
    total, value = totals[0], values[0]
    for tile in range(1, len(highest)):
        total = total + totals[tile]
        value = value + values[tile]
    return value / total


def _finite(highest: Tensor) -> Tensor:
    """0 in place of the highest of nothing, which is -inf."""
    return torch.where(highest == -math.inf, 0.0, highest)


def _tiles(x: Tensor, offset: int) -> Tensor:
    """x [n, kv_heads, size] from `offset` on in as many tiles as it takes, the rest 0: [tiles, kv_heads, KEYS, size].

    Always with the same strides, so that products take the same way.
    """
    count, heads, size = x.shape
    end = offset + count
    room = -(-end // KEYS) * KEYS
    if count < room:
        padded = x.new_empty((room, heads, size))
        padded[:offset] = 0.0
        padded[offset:end] = x
        padded[end:] = 0.0
        x = padded
    return x.contiguous().view(-1, KEYS, heads, size).transpose(1, 2)


def _multiply(tiles: Tensor, matrices: Tensor, out: Tensor) -> None:
    """tiles [key tiles, tiles, kv_heads, m, j] times matrices [key tiles, kv_heads, j, n], in `out` [..., m, n].

    One by one: how many there are can change the bits of a batch.
    """
    for of_keys, matrix, targets in zip(tiles, matrices, out, strict=True):
        for tile, target in zip(of_keys, targets, strict=True):
            torch.bmm(tile, matrix, out=target)
