"""The KV ledger: how many cells are in use, with sharing counted once.

A sequence is a chain of segments, runs of cells computed together. Forking shares segments; a cell lives as long as any
sequence covers it, so a segment occupies as many cells as its longest user covers. This mirrors what engines do,
without asking them: llama.cpp reports no free count.
"""

from __future__ import annotations

from collections.abc import Iterable


class _Segment:
    """A run of cells; `users` maps a sequence to how many of them it covers, from the first."""

    __slots__ = ("users",)

    def __init__(self) -> None:
        self.users: dict[int, int] = {}

    @property
    def cells(self) -> int:
        return max(self.users.values(), default=0)


class Ledger:
    """Counts the cells of numbered sequences. Raises ValueError on operations no engine would allow."""

    def __init__(self, capacity: int, max_sequences: int) -> None:
        self.capacity = capacity
        self.used = 0
        self._chains: dict[int, list[_Segment]] = {}
        self._lengths: dict[int, int] = {}
        self._free_sequences = list(range(max_sequences - 1, -1, -1))

    @property
    def free(self) -> int:
        """Cells not in use."""
        return self.capacity - self.used

    @property
    def free_sequences(self) -> int:
        return len(self._free_sequences)

    def length(self, sequence: int) -> int:
        return self._lengths[sequence]

    def used_by(self, sequences: Iterable[int]) -> int:
        """Cells that these sequences cover, shared ones counted once."""
        covered: dict[_Segment, int] = {}
        for sequence in sequences:
            for segment in self._chains[sequence]:
                covered[segment] = max(covered.get(segment, 0), segment.users[sequence])
        return sum(covered.values())

    def open(self) -> int:
        """A new empty sequence, under a number that is free."""
        if not self._free_sequences:
            raise ValueError("no free sequence")
        sequence = self._free_sequences.pop()
        self._chains[sequence] = []
        self._lengths[sequence] = 0
        return sequence

    def extend(self, sequence: int, count: int) -> None:
        """Append `count` cells."""
        if count > self.free:
            raise ValueError(f"{count} cells asked, {self.free} free")
        chain = self._chains[sequence]
        if not chain or len(chain[-1].users) > 1:
            chain.append(_Segment())
        last = chain[-1]
        last.users[sequence] = last.users.get(sequence, 0) + count
        self._lengths[sequence] += count
        self.used += count

    def fork(self, source: int, length: int) -> int:
        """A new sequence sharing the first `length` cells of `source`."""
        if not 0 <= length <= self._lengths[source]:
            raise ValueError(f"fork of {length} cells from a sequence of {self._lengths[source]}")
        target = self.open()
        left = length
        for segment in self._chains[source]:
            if left == 0:
                break
            taken = min(left, segment.users[source])
            segment.users[target] = taken
            self._chains[target].append(segment)
            left -= taken
        self._lengths[target] = length
        return target

    def truncate(self, sequence: int, length: int) -> None:
        """Drop the cells at and beyond `length`."""
        drop = self._lengths[sequence] - length
        if drop < 0 or length < 0:
            raise ValueError(f"truncate to {length} of {self._lengths[sequence]}")
        chain = self._chains[sequence]
        while drop:
            segment = chain[-1]
            before = segment.cells
            taken = min(drop, segment.users[sequence])
            segment.users[sequence] -= taken
            if segment.users[sequence] == 0:
                del segment.users[sequence]
                chain.pop()
            self.used -= before - segment.cells
            drop -= taken
        self._lengths[sequence] = length

    def close(self, sequence: int) -> None:
        """Drop a sequence and give its number back."""
        self.truncate(sequence, 0)
        del self._chains[sequence], self._lengths[sequence]
        self._free_sequences.append(sequence)
