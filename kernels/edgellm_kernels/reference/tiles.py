"""Matrix products in which a row's bits do not depend on the rows beside it.

A BLAS picks its code, and with it the order of sums, by the shape of the product, and may treat the rows at an edge
apart. So products have one shape: `ROWS` rows (padded with zeros) times a tile of the matrix that depends on the matrix
alone. What is left, a row's place among the sixteen, is measured once per shape, on this machine and with its threads:
MKL computed `matrix @ rows^T` the same at every place in all 236 shapes tried, `rows @ matrix^T` not in all. Where it
is not so, rows are multiplied one by one.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from functools import lru_cache
from typing import Final

import torch
from torch import Tensor

ROWS: Final = 16  # a product with 16 rows took as long as with 8 (64 us for 448 x 576), and 64 of 77 GMAC/s with 128
_TILE: Final = 1 << 18  # values of a matrix multiplied at once, about: 1 MiB in float32, so that they stay in the cache
_LEAST: Final = 32  # rows of a tile of the matrix are a multiple of this
_ALIGNED: Final = 64  # bytes: a BLAS may go over memory that begins elsewhere in another order


class _Scratch(threading.local):
    """Where a thread dequantises its next tile. Fresh memory for each would cost as much as the arithmetic."""

    def __init__(self) -> None:
        self.floats: dict[torch.device, Tensor] = {}


_SCRATCH: Final = _Scratch()


def scratch(n: int, k: int, device: torch.device) -> Tensor:
    """float32 [n, k] of no certain content, used again by this thread's next call."""
    held = _SCRATCH.floats.get(device)
    if held is None or held.numel() < n * k:
        with torch.inference_mode(False):  # a tensor made within it could not be written to outside
            held = _SCRATCH.floats[device] = torch.empty(max(n * k, _TILE), device=device)
    return held[: n * k].view(n, k)


def spans(n: int, k: int) -> Iterator[tuple[int, int]]:
    """The tiles of a matrix [n, k]: ranges of its rows."""
    count = max(1, round(n * k / _TILE))
    step = -(-n // (count * _LEAST)) * _LEAST
    for start in range(0, n, step):
        yield start, min(start + step, n)


def split(x: Tensor) -> Tensor:
    """Rows [rows, k] as aligned tiles [tiles, ROWS, k], the last one filled up with zeros."""
    rows, k = x.shape
    short = -rows % ROWS
    if short or x.data_ptr() % _ALIGNED:
        padded = x.new_zeros((rows + short, k))
        padded[:rows] = x
        x = padded
    return x.contiguous().view(-1, ROWS, k)


def joined(found: Tensor, rows: int) -> Tensor:
    """Products [tiles, n, ROWS] as rows [rows, n]; what the padding gave is left out."""
    if found.shape[0] == 1:
        return found[0, :, :rows].t().contiguous()
    return found.transpose(1, 2).reshape(-1, found.shape[1])[:rows]


def multiply(matrix: Tensor, tiles: Tensor, out: Tensor) -> None:
    """matrix [n, k] times each of tiles [tiles, ROWS, k], into out [tiles, n, ROWS]."""
    n, k = matrix.shape
    if place_free(n, k, str(matrix.device), torch.get_num_threads()):
        for tile, target in zip(tiles, out, strict=True):
            torch.mm(matrix, tile.t(), out=target)
        return
    for tile, target in zip(tiles, out, strict=True):
        for row in range(ROWS):
            target[:, row] = torch.mm(matrix, tile[row : row + 1].t())[:, 0]


@lru_cache(maxsize=4096)
def place_free(n: int, k: int, device: str, threads: int) -> bool:  # noqa: ARG001
    """Whether a row's place in a tile changes no bit of its product with a matrix [n, k]; measured.

    The order of sums does not depend on values, so random ones tell.
    """
    generator = torch.Generator().manual_seed(n * 1_000_003 + k)
    matrix = torch.randn((n, k), generator=generator).to(device)
    row = torch.randn((1, k), generator=generator).to(device)
    same = torch.mm(matrix, row.expand(ROWS, k).contiguous().t())
    if not bool((same == same[:, :1]).all()):
        return False
    for place in (0, 1, ROWS // 2 - 1, ROWS - 1):
        others = torch.randn((ROWS, k), generator=generator).to(device)
        others[place] = row[0]
        if not torch.equal(torch.mm(matrix, others.t())[:, place], same[:, 0]):
            return False
    return True
