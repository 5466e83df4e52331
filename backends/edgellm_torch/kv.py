"""The tensors behind the paged pool: for each layer pages of keys and values, one block of the pool in each page."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from edgellm_kernels.pages import Pages
from torch import Tensor

from edgellm_torch.config import Attention, Decoder, Latent
from edgellm_torch.pool import BLOCK, GONE, Copy, Pool
from edgellm_torch.transfer import upload


class KVMemory:
    """Pages for every layer. Layers with the same window are a group, and share the pool's tables of that group."""

    def __init__(self, decoder: Decoder, blocks: Sequence[int], kind: str, devices: Sequence[str]) -> None:
        """`blocks` of each group, in the order of `decoder.windows`; `kind`: how numbers are stored.

        `devices`: where each layer's pages lie. Tables are the same for all.
        """
        windows = decoder.windows
        self.groups = [windows.index(layer.attention.window) for layer in decoder.layers]
        self.pages = [
            _pages(layer.attention, blocks[group], kind, device)
            for layer, group, device in zip(decoder.layers, self.groups, devices, strict=True)
        ]
        for pages in self.pages:  # taken now, not page by page in the middle of a text
            for tensor in pages.tensors():
                tensor.view(torch.uint8).fill_(0)

    def copy(self, copies: Sequence[Sequence[Copy]]) -> None:
        """Make the copies that `Pool.reserve` asked for, of each group."""
        if not any(copies):
            return
        for pages, group in zip(self.pages, self.groups, strict=True):
            for copy in copies[group]:
                pages.copy_block(copy.source, copy.target)

    def read(self, pool: Pool, sequence: int) -> list[list[Tensor]]:
        """Copies of a sequence's pages in RAM, for each layer; what the windows have let go of is left out."""
        held = _held(pool, sequence)
        layers = zip(self.pages, self.groups, strict=True)
        return [[tensor.cpu() for tensor in pages.read(held[group])] for pages, group in layers]

    def write(self, pool: Pool, sequence: int, contents: Sequence[Sequence[Tensor]]) -> None:
        """Bring what `read` gave back into the blocks that the sequence now has."""
        held = _held(pool, sequence)
        for pages, group, tensors in zip(self.pages, self.groups, contents, strict=True):
            if held[group]:
                pages.write(held[group], list(tensors))

    @property
    def nbytes(self) -> int:
        return sum(pages.nbytes for pages in self.pages)

    def nbytes_by(self, layers: Iterable[int]) -> list[int]:
        """Of so many layers each, one after the other."""
        pages = iter(self.pages)
        return [sum(next(pages).nbytes for _ in range(count)) for count in layers]


def _pages(attention: Attention | Latent, blocks: int, kind: str, device: str) -> Pages:
    if isinstance(attention, Attention):
        return Pages.empty(
            kind, blocks, BLOCK, attention.kv_heads, attention.key_size, attention.value_size, device=device
        )
    # Keys of rank + rope numbers, of which the first are the values.
    return Pages.empty(kind, blocks, BLOCK, 1, attention.kv_numbers, attention.rank, device=device, shares_v=True)


def _held(pool: Pool, sequence: int) -> list[list[int]]:
    return [[block for block in group.tables[sequence] if block != GONE] for group in pool.groups]


def table(rows: Sequence[Sequence[int]], device: str) -> Tensor:
    """Block tables of several sequences as one tensor, int64 [sequences, blocks of the longest]; -1 beyond."""
    width = max((len(row) for row in rows), default=0)
    filled = [[*row, *([GONE] * (width - len(row)))] for row in rows]
    return upload(filled, torch.int64, device)
