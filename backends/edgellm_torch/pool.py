"""The paged KV pool: which blocks hold which tokens of which sequence. Plain Python; the tensors are in kv.py.

A block has room for BLOCK tokens of all layers of a group. Layers that attend to everything form one group, layers with
a window another, which lets go of what no token to come can see. Sequences share blocks, which are counted; whoever
writes into a shared one gets a copy first (Kwon et al., "Efficient Memory Management for Large Language Model Serving
with PagedAttention", 2023). A step gets all the room it wants, or none and nothing has changed.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

BLOCK: Final = 16  # tokens
GONE: Final = -1  # stands in a table where a block lay that the window has passed


class Copy(NamedTuple):
    """A block that must be copied before the step writes: the writer's share of it."""

    source: int
    target: int


class Group:
    """The blocks of layers with the same window (0: none), and the table of each sequence."""

    def __init__(self, blocks: int, sequences: int, window: int = 0) -> None:
        self.blocks = blocks
        self.window = window
        self.references = [0] * blocks
        self.tables: list[list[int]] = [[] for _ in range(sequences)]
        self._free = list(range(blocks - 1, -1, -1))

    @property
    def free(self) -> int:
        """Blocks that nobody holds."""
        return len(self._free)

    def first(self, length: int) -> int:
        """The index of the first block that a token at position `length` sees, or any after it."""
        return max(0, length - self.window + 1) // BLOCK if self.window else 0

    def forgotten(self, sequence: int) -> int:
        """How many blocks at a sequence's beginning are gone."""
        table = self.tables[sequence]
        if not table or table[0] != GONE:
            return 0
        low, high = 0, len(table)  # GONE stands only at the beginning
        while low < high:
            middle = (low + high) // 2
            low, high = (middle + 1, high) if table[middle] == GONE else (low, middle)
        return low

    def passed(self, sequence: int, length: int) -> list[int]:
        """Blocks that no token of the sequence from position `length` on sees."""
        return [block for block in self.tables[sequence][: self.first(length)] if block != GONE]

    def take(self) -> int:
        block = self._free.pop()
        self.references[block] = 1
        return block

    def share(self, block: int) -> int:
        if block != GONE:
            self.references[block] += 1
        return block

    def drop(self, block: int) -> None:
        if block == GONE:
            return
        self.references[block] -= 1
        if self.references[block] == 0:
            self._free.append(block)

    def cut(self, sequence: int, blocks: int) -> None:
        """Keep the first `blocks` of a sequence."""
        table = self.tables[sequence]
        for block in table[blocks:]:
            self.drop(block)
        del table[blocks:]

    def forget(self, sequence: int, length: int) -> None:
        """Let go of what no token from position `length` on sees."""
        table = self.tables[sequence]
        for index in range(self.forgotten(sequence), min(self.first(length), len(table))):
            self.drop(table[index])
            table[index] = GONE

    def wanted(self, growth: Iterable[tuple[int, int, int]]) -> int:
        """Blocks that rows (sequence, its length, tokens to come) take, copies of shared ones included."""
        blocks = 0
        left: dict[int, int] = {}  # shared blocks that rows before have already got a copy of: holders left
        for sequence, length, count in growth:
            blocks += blocks_for(length + count) - blocks_for(length)
            if length % BLOCK and count:
                tail = self.tables[sequence][-1]
                holders = left.get(tail, self.references[tail])
                if holders > 1:
                    blocks += 1
                    left[tail] = holders - 1
        return blocks

    def grow(self, sequence: int, length: int, count: int) -> Copy | None:
        """Append room for `count` tokens after `length`; the copy to be made of a tail that others hold too."""
        table = self.tables[sequence]
        copy = None
        if length % BLOCK and count and self.references[table[-1]] > 1:
            copy = Copy(table[-1], self.take())
            self.drop(copy.source)
            table[-1] = copy.target
        table.extend(self.take() for _ in range(blocks_for(length + count) - len(table)))
        return copy


class Pool:
    """The room of all groups, and every sequence's length. Sequences are numbered from 0; callers check numbers."""

    def __init__(self, groups: Sequence[tuple[int, int]], sequences: int) -> None:
        """`groups`: blocks and window of each."""
        self.groups = [Group(blocks, sequences, window) for blocks, window in groups]
        self.lengths = [0] * sequences
        self._settled = [0] * sequences  # lengths without what a running step may still take back

    def reserve(self, growth: Sequence[tuple[int, int]]) -> list[list[Copy]] | None:
        """Room for rows of (sequence, tokens), each sequence once: what to copy first, for each group.

        None when there is not enough, and nothing has changed. Call `settle` once it is certain what stays.
        """
        rows = [(sequence, self.lengths[sequence], count) for sequence, count in growth]
        if not self._make_room([group.wanted(rows) for group in self.groups]):
            return None
        copies: list[list[Copy]] = []
        for group in self.groups:
            grown = [group.grow(*row) for row in rows]
            copies.append([copy for copy in grown if copy is not None])
        for sequence, length, count in rows:
            self.lengths[sequence] = length + count
        return copies

    def settle(self, sequence: int, length: int) -> None:
        """A step has ended for a sequence: what lies at and beyond `length` is dropped, the rest stays."""
        self._cut(sequence, length)

    def truncate(self, sequence: int, length: int) -> None:
        """Drop what lies at and beyond `length`. Raises ValueError where `reusable` does not allow it."""
        self._require(sequence, length)
        self._cut(sequence, length)

    def fork(self, source: int, target: int, length: int) -> None:
        """Let `target`, which is empty, share the first `length` tokens. Raises ValueError as `truncate` does."""
        self._require(source, length)
        for group in self.groups:
            shared = group.tables[source][: blocks_for(length)]
            group.tables[target] = [group.share(block) for block in shared]
        self.lengths[target] = self._settled[target] = length

    def free(self, sequence: int) -> None:
        self._cut(sequence, 0)

    def reusable(self, sequence: int, length: int) -> int:
        """`length`, at most the sequence's own, where all that the next token sees is still there, else 0."""
        length = min(length, self.lengths[sequence])
        if length == self.lengths[sequence]:
            return length
        return length if all(group.forgotten(sequence) <= group.first(length) for group in self.groups) else 0

    def open(self, sequence: int, length: int, forgotten: Sequence[int]) -> bool:
        """Give an empty sequence blocks for `length` tokens, less the first `forgotten` blocks of each group.

        False when there is not enough room, and nothing has changed.
        """
        count = blocks_for(length)
        if not self._make_room([count - gone for gone in forgotten]):
            return False
        for group, gone in zip(self.groups, forgotten, strict=True):
            group.tables[sequence] = [GONE] * gone + [group.take() for _ in range(count - gone)]
        self.lengths[sequence] = self._settled[sequence] = length
        return True

    def _make_room(self, wanted: Sequence[int]) -> bool:
        """Whether each group has so many free blocks, once its windows have let go of what they passed.

        They hold on to it until then: a conversation may yet be forked or cut where it lies.
        """
        short = [(group, count) for group, count in zip(self.groups, wanted, strict=True) if count > group.free]
        if any(group.free + self._passed(group) < count for group, count in short):
            return False
        for group, _ in short:
            for sequence, length in enumerate(self._settled):
                group.forget(sequence, length)
        return True

    def _passed(self, group: Group) -> int:
        """Blocks that `forget` would free: those that every holder has passed."""
        holders: dict[int, int] = {}
        for sequence, length in enumerate(self._settled):
            for block in group.passed(sequence, length):
                holders[block] = holders.get(block, 0) + 1
        return sum(group.references[block] == count for block, count in holders.items())

    def _cut(self, sequence: int, length: int) -> None:
        for group in self.groups:
            group.cut(sequence, blocks_for(length))
        self.lengths[sequence] = self._settled[sequence] = length

    def _require(self, sequence: int, length: int) -> None:
        if self.reusable(sequence, length) < length:
            raise ValueError(f"sequence {sequence} no longer holds all that position {length} needs")


def blocks_for(tokens: int) -> int:
    """Blocks that so many tokens take."""
    return -(-tokens // BLOCK)
