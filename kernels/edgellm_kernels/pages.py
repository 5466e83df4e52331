"""Paged KV: what one layer keeps of all sequences, and which rows of a call belong to which of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

import torch
from torch import Tensor

from edgellm_kernels.kv_kinds import SCALED, check_kind

_DTYPES: Final = {
    "f16": torch.float16,
    "f32": torch.float32,
    "bf16": torch.bfloat16,
    "int8": torch.int8,
    "fp8": torch.float8_e4m3fn,
}


@dataclass(frozen=True, eq=False)
class Pages:
    """Keys and values of one layer, in blocks of tokens that sequences name in their tables.

    k, v            [blocks, block_size, kv_heads, size], in the kind's type; v is None where `shares_v`
    k_scale, …      float32 [blocks, block_size, kv_heads] of the kinds that have scales ("int8", "fp8")
    v_size          of a head's value; with `shares_v`, values are the first v_size of its key (latent attention)
    """

    kind: str
    k: Tensor
    v: Tensor | None
    k_scale: Tensor | None
    v_scale: Tensor | None
    v_size: int

    @classmethod
    def empty(
        cls,
        kind: str,
        blocks: int,
        block_size: int,
        kv_heads: int,
        k_size: int,
        v_size: int,
        *,
        device: torch.device | str = "cpu",
        shares_v: bool = False,
    ) -> Pages:
        """Room for blocks * block_size tokens. ValueError for an unknown kind, or shared values longer than keys."""
        check_kind(kind)
        if shares_v and v_size > k_size:
            raise ValueError(f"values of {v_size} cannot be part of keys of {k_size}")
        where = (blocks, block_size, kv_heads)

        def room(size: int) -> Tensor:
            return torch.zeros((*where, size), dtype=_DTYPES[kind], device=device)

        def scale() -> Tensor | None:
            return torch.zeros(where, device=device) if kind in SCALED else None

        v, v_scale = (None, None) if shares_v else (room(v_size), scale())
        return cls(kind, room(k_size), v, scale(), v_scale, v_size)

    @property
    def shares_v(self) -> bool:
        return self.v is None

    @property
    def block_size(self) -> int:
        """Tokens of a block."""
        return int(self.k.shape[1])

    @property
    def kv_heads(self) -> int:
        return int(self.k.shape[2])

    @property
    def k_size(self) -> int:
        return int(self.k.shape[3])

    @property
    def nbytes(self) -> int:
        return sum(tensor.nbytes for tensor in self.tensors())

    def tensors(self) -> list[Tensor]:
        """All there are; the first axis of each is the block."""
        return [tensor for tensor in (self.k, self.v, self.k_scale, self.v_scale) if tensor is not None]

    def copy_block(self, source: int, target: int) -> None:
        for tensor in self.tensors():
            tensor[target].copy_(tensor[source])

    def read(self, blocks: Sequence[int]) -> list[Tensor]:
        """Copies of these blocks of each of `tensors()`."""
        index = torch.tensor(list(blocks), dtype=torch.int64, device=self.k.device)
        return [_bytes(tensor).index_select(0, index) for tensor in self.tensors()]

    def write(self, blocks: Sequence[int], copies: Sequence[Tensor]) -> None:
        """Put what `read` gave into these blocks."""
        index = torch.tensor(list(blocks), dtype=torch.int64, device=self.k.device)
        for tensor, copy in zip(self.tensors(), copies, strict=True):
            _bytes(tensor).index_copy_(0, index, copy.to(tensor.device))


@dataclass(frozen=True, eq=False)
class Ragged:
    """The sequences of a call, whose rows follow each other without gaps.

    starts    the position of each sequence's first row
    counts    its rows, at positions starts, starts + 1, …: one for decode, more for prefill and drafts
    tables    int64 [sequences, width]: entry i is the block of positions i * block_size to (i + 1) * block_size - 1.
              Entries that no row of the call may see can be anything.
    """

    starts: tuple[int, ...]
    counts: tuple[int, ...]
    tables: Tensor
    _slots: dict[tuple[int, int], Tensor] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        if not len(self.starts) == len(self.counts) == self.tables.shape[0]:
            raise ValueError(f"{len(self.starts)} starts, {len(self.counts)} counts, {self.tables.shape[0]} tables")
        if min(self.counts, default=1) < 1 or min(self.starts, default=0) < 0:
            raise ValueError(f"sequences of {self.counts} rows from positions {self.starts}")

    @property
    def rows(self) -> int:
        return sum(self.counts)

    def to(self, device: torch.device | str) -> Ragged:
        """The same with its tables on a device."""
        return Ragged(self.starts, self.counts, self.tables.to(device))

    def positions(self, device: torch.device | str | None = None) -> Tensor:
        """Of each row: int64 [rows]."""
        parts = [torch.arange(start, start + count) for start, count in zip(self.starts, self.counts, strict=True)]
        return torch.cat(parts).to(device or self.tables.device) if parts else torch.empty(0, dtype=torch.int64)

    def slots(self, block_size: int) -> Tensor:
        """Where each row's keys and values go: block * block_size + offset, int64 [rows]."""
        parts = [
            self.places(i, start, start + count, block_size)
            for i, (start, count) in enumerate(zip(self.starts, self.counts, strict=True))
        ]
        return torch.cat(parts) if parts else torch.empty(0, dtype=torch.int64, device=self.tables.device)

    def places(self, sequence: int, first: int, end: int, block_size: int) -> Tensor:
        """The slots of a sequence's positions first to end - 1: int64 [end - first].

        A view of what is kept for all positions of the sequence: every layer asks.
        """
        if end > self.tables.shape[1] * block_size:
            raise ValueError(f"position {end - 1} lies beyond a table of {self.tables.shape[1]} blocks")
        key = (sequence, block_size)
        if (found := self._slots.get(key)) is None:
            blocks = -(-(self.starts[sequence] + self.counts[sequence]) // block_size)
            offsets = torch.arange(block_size, device=self.tables.device)
            found = (self.tables[sequence, :blocks].long()[:, None] * block_size + offsets).view(-1)
            self._slots[key] = found
        return found[first:end]


def _bytes(tensor: Tensor) -> Tensor:
    """fp8 as bytes: not every operation knows it."""
    return tensor.view(torch.uint8) if tensor.dtype == torch.float8_e4m3fn else tensor
