"""Who fetches what. A lease is a run of bytes that one connection fetches; no byte is in two leases at once.

A new lease is the first gap that nobody fetches, cut at `span`. When no gap is left, it is the second half of the rest
of the lease that has most to go: so the last bytes of a file come over all connections and not over the slowest.
"""

from __future__ import annotations

import time
from typing import Final

from edgellm.library.transfer.ranges import RangeTable

SPAN: Final = 64 << 20  # bytes of one request at most: long enough that its start costs nothing, short enough to share
_HISTORY_S: Final = 1.0  # how far apart the readings are that a rate is measured between


class Lease:
    """Bytes `pos` to `end`, moving. `end` may shrink while it is fetched, to a border of pieces ahead of `pos`."""

    def __init__(self, pos: int, end: int, now: float) -> None:
        self.pos = pos
        self.end = end
        self.cancelled = False  # its connection is to be given up
        self._began = (now, pos)
        self._marks = [(now, pos)]  # readings about _HISTORY_S apart, oldest first

    def rate(self, window_s: float, now: float) -> float | None:
        """Bytes per second over the last `window_s` seconds; None for a younger lease."""
        if now - self._marks[-1][0] >= _HISTORY_S:
            self._marks.append((now, self.pos))
        while len(self._marks) > 1 and now - self._marks[1][0] >= window_s:
            self._marks.pop(0)
        began, first = self._marks[0]
        return (self.pos - first) / (now - began) if now - began >= window_s else None

    def overall_rate(self, now: float) -> float:
        """Bytes per second since it began."""
        began, first = self._began
        return (self.pos - first) / max(now - began, 1e-3)


class Leases:
    """The active leases over one table. Not thread-safe: its user holds the lock."""

    def __init__(self, table: RangeTable, span: int = SPAN) -> None:
        self._table = table
        self._span = max(span, table.piece)
        self.active: list[Lease] = []

    def take(self) -> Lease | None:
        """The next lease; None when all that is missing is being fetched and nothing can be divided."""
        lease = self._gap() or self._half()
        if lease is not None:
            self.active.append(lease)
        return lease

    def release(self, lease: Lease) -> None:
        """The lease ends; what it did not fetch is a gap again."""
        self.active.remove(lease)

    def _gap(self) -> Lease | None:
        table = self._table
        index = 0
        while index < table.count:
            held = self._holder(index)
            if held is not None:
                index = max(index + 1, -(-held.end // table.piece))
            elif table.whole(index):
                index += 1
            else:
                return self._lease_from(index)
        return None

    def _lease_from(self, index: int) -> Lease:
        table = self._table
        pos = table.start(index) + table.done(index)
        end = index + 1
        # A later piece that has begun is a lease of its own: within one lease the bytes follow each other.
        while (
            end < table.count
            and table.start(end) - pos < self._span
            and table.done(end) == 0
            and self._holder(end) is None
        ):
            end += 1
        return Lease(pos, min(table.size, table.start(end)), time.monotonic())

    def _half(self) -> Lease | None:
        piece = self._table.piece
        best = max(self.active, key=lambda lease: lease.end - lease.pos, default=None)
        if best is None:
            return None
        middle = (best.pos + (best.end - best.pos) // 2) // piece * piece
        # One piece of distance: its holder may be writing the piece after the one it stands in.
        if middle < (best.pos // piece + 2) * piece or middle >= best.end:
            return None
        lease = Lease(middle, best.end, time.monotonic())
        best.end = middle
        return lease

    def _holder(self, index: int) -> Lease | None:
        start, end = self._table.start(index), self._table.start(index + 1)
        return next((lease for lease in self.active if lease.pos < end and start < lease.end), None)
