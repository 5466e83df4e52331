"""The prefix cache: who holds which tokens' KV, what a prompt can start from, what gives way when room is short.

Three kinds of holders stand in one radix tree:

    running    sequences of jobs being computed
    idle       sequences of jobs that ended, kept in KV memory; within a budget while others run, since on a unified KV
               pool every step pays for all cells in use, its own or not
    parked     copies in RAM, within a budget of bytes; they come back by unpark, in milliseconds where recomputing
               takes seconds

Least recently used gives way first: idle becomes parked, parked is dropped. A running job gives way only when the
scheduler says so (`retire`), and may find its own tokens here when it comes back.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Protocol

from edgellm.contracts.runner import Parked, RunnerInfo
from edgellm.engine.ledger import Ledger
from edgellm.engine.limits import Limits
from edgellm.engine.prefix import PrefixTree

_FIRST_PARKED = 1 << 32  # parked holders are numbered above every sequence
_TAKE_OVER = 16  # an idle sequence longer than the match by no more than this is cut and taken, not forked
_LEAST_SHARED = 8  # a shorter common prefix is not worth a shared segment
_FRAGMENTED = 1024  # unused cells below the highest in use, before an idle pool is emptied
_LEAST_PARKED = 64  # fewer tokens that nobody else holds are computed again sooner than the whole is copied out and in


class KvMemory(Protocol):
    """The part of TokenRunner that moves KV about."""

    def fork(self, source: int, target: int, length: int) -> None: ...
    def truncate(self, sequence: int, length: int) -> None: ...
    def free(self, sequence: int) -> None: ...
    def reusable(self, sequence: int, length: int) -> int: ...
    def park(self, sequence: int) -> Parked: ...
    def unpark(self, parked: Parked, sequence: int) -> None: ...


class PrefixCache:
    """Owns every sequence of a runner, the ledger of its cells and the tree of what they hold."""

    def __init__(self, memory: KvMemory, info: RunnerInfo, limits: Limits) -> None:
        self._memory = memory
        self._limits = limits
        self._ledger = Ledger(info.capacity, info.max_sequences)
        self._tree = PrefixTree()
        self._running: set[int] = set()
        self._idle: dict[int, None] = {}  # in order of use, oldest first
        self._parked: dict[int, Parked] = {}  # likewise
        self._parked_bytes = 0
        self._next_parked = _FIRST_PARKED
        self._high_water = 0  # most cells in use since the pool was last empty
        self._holes = False  # cells were freed that running sequences may grow into
        self.placed = 0  # cells ever used since then: none beyond lies in use

    # -- what there is ---------------------------------------------------------------------------

    @property
    def used(self) -> int:
        """Cells in use, idle ones included."""
        return self._ledger.used

    @property
    def free(self) -> int:
        """Cells that nobody holds."""
        return self._ledger.free

    @property
    def running_cells(self) -> int:
        """Cells that running jobs hold; the rest can be had by letting idle sequences go."""
        return self._ledger.used_by(self._running)

    @property
    def idle_cells(self) -> int:
        return self._ledger.used - self.running_cells

    @property
    def parked_bytes(self) -> int:
        return self._parked_bytes

    @property
    def free_sequences(self) -> int:
        """Sequences a job may have, idle ones included."""
        return self._ledger.free_sequences + len(self._idle)

    def length(self, sequence: int) -> int:
        """Tokens that a sequence has cells for."""
        return self._ledger.length(sequence)

    def held(self, tokens: Sequence[int], key: Hashable) -> int:
        """How many tokens from the first are held by anyone (an upper bound of what `open` can reuse)."""
        return self._tree.match(tokens, key)[0]

    def held_running(self, tokens: Sequence[int], key: Hashable) -> int:
        """The same, where a running job holds them: sharing these costs no cells."""
        length, holders = self._tree.match(tokens, key)
        return length if any(holder in self._running for holder in holders) else 0

    # -- a job's sequence ------------------------------------------------------------------------

    def open(self, tokens: Sequence[int], key: Hashable) -> tuple[int, int]:
        """A sequence for a job with these tokens, and how many of them it already holds; the last is never among them.

        The caller has checked `free_sequences`.
        """
        length, holders = self._tree.match(tokens[:-1], key)
        source = self._best(holders, length) if length >= _LEAST_SHARED else None
        sequence, held = self._open_from(source, length)
        self._running.add(sequence)
        self._tree.insert(sequence, tokens[:held], key)
        self._trim()
        return sequence, held

    def extend(self, sequence: int, count: int) -> None:
        """Cells for `count` tokens about to be computed. The caller has made room."""
        self._ledger.extend(sequence, count)
        self._high_water = max(self._high_water, self._ledger.used)
        self.placed += count

    def shrink(self, sequence: int, length: int) -> None:
        """The runner did not take the tokens beyond `length` after all."""
        self._holes |= length < self._ledger.length(sequence) and len(self._running) > 1
        self._ledger.truncate(sequence, length)

    def give_back(self, sequence: int, tokens: Sequence[int], key: Hashable) -> bool:
        """Cut a running sequence to `tokens`, its first ones; False, and nothing done, where that is not exact."""
        length = len(tokens)
        if self._memory.reusable(sequence, length) < length:
            return False
        self._truncate(sequence, length)
        self._tree.remove(sequence)
        self._tree.insert(sequence, tokens, key)
        return True

    def computed(self, sequence: int, tokens: Sequence[int]) -> None:
        """These tokens' KV is now there: others may share it."""
        self._tree.extend(sequence, tokens)

    def retire(self, sequence: int, *, keep: bool = True) -> None:
        """A job is done with its sequence. Kept for others unless `keep` is false (its KV is wrong)."""
        self._running.discard(sequence)
        if not keep or self._lost(sequence) < _LEAST_SHARED:
            self._free(sequence)
            return
        self._idle[sequence] = None
        if self._running:
            self._trim()

    def make_room(self, cells: int) -> bool:
        """Let idle sequences go until `cells` are free; False when that is not enough."""
        while self._ledger.free < cells and self._idle:
            self._let_go()
        return self._ledger.free >= cells

    def _trim(self) -> None:
        """Something runs, and pays for idle cells: keep them within their budget."""
        while self._idle and self.idle_cells > self._limits.idle_cells:
            self._let_go()

    def settle(self) -> None:
        """Nothing runs: empty a fragmented pool, since steps pay for every cell below the highest in use."""
        if self._running or self._high_water - self._ledger.used <= _FRAGMENTED:
            return
        self.let_go_all()

    def in_order(self) -> bool:
        """Lay running sequences out anew, one after the other, if cells were freed between them; False: no room.

        Where rounding depends on the order of cells in the pool. What sequences share is then there once for each.
        """
        if not self._holes:
            return True
        self.let_go_all()
        lengths = {sequence: self._ledger.length(sequence) for sequence in sorted(self._running)}
        if sum(lengths.values()) > self._ledger.capacity:
            return False
        copies = {sequence: self._memory.park(sequence) for sequence, length in lengths.items() if length}
        for sequence in lengths:
            self._memory.free(sequence)
            self._ledger.truncate(sequence, 0)
        self._high_water = self.placed = 0
        for sequence, copy in copies.items():
            self._memory.unpark(copy, sequence)
            self.extend(sequence, lengths[sequence])
        self._holes = False
        return True

    def let_go_all(self) -> bool:
        """Let every idle sequence go; False when there was none."""
        any_idle = bool(self._idle)
        while self._idle:
            self._let_go()
        return any_idle

    # -- finding a source ------------------------------------------------------------------------

    def _best(self, holders: list[int], length: int) -> int | None:
        """The holder to start from: in KV memory where exact, else a parked copy, else none."""
        in_kv = [h for h in holders if h < _FIRST_PARKED and self._memory.reusable(h, length) >= length]
        if in_kv:
            # An idle one that can be taken over whole saves a sequence; otherwise any will do.
            return min(in_kv, key=lambda h: (not self._can_take(h, length), h))
        return next((h for h in holders if h >= _FIRST_PARKED), None)

    def _can_take(self, holder: int, length: int) -> bool:
        return holder in self._idle and self._ledger.length(holder) - length <= _TAKE_OVER

    def _from_kv(self, source: int, length: int) -> tuple[int, int]:
        if self._can_take(source, length):
            return self._taken(source, length)
        if source in self._idle:
            self._idle[source] = self._idle.pop(source)  # most recently used now
        if not self._ledger.free_sequences:
            self._let_go(spare=source)
        if not self._ledger.free_sequences:  # the source was the only idle one
            return self._taken(source, length)
        target = self._ledger.fork(source, length)
        self._memory.fork(source, target, length)
        return target, length

    def _taken(self, idle: int, length: int) -> tuple[int, int]:
        """An idle sequence goes on as a running one, cut to `length`."""
        self._tree.remove(idle)
        del self._idle[idle]
        self._truncate(idle, length)
        return idle, length

    def _from_parked(self, source: int, length: int) -> tuple[int, int]:
        parked = self._parked.pop(source)
        self._parked[source] = parked  # most recently used now
        sequence = self._open_empty()
        if not self.make_room(parked.length):
            return sequence, 0
        self._memory.unpark(parked, sequence)
        self.extend(sequence, parked.length)
        length = self._memory.reusable(sequence, min(length, parked.length))
        self._truncate(sequence, length)
        return sequence, length

    def _open_from(self, source: int | None, length: int) -> tuple[int, int]:
        if source is None:
            return self._open_empty(), 0
        return self._from_parked(source, length) if source in self._parked else self._from_kv(source, length)

    def _open_empty(self) -> int:
        if not self._ledger.free_sequences:
            self._let_go()
        return self._ledger.open()

    def _truncate(self, sequence: int, length: int) -> None:
        if length == 0:
            self._memory.free(sequence)
        elif length < self._ledger.length(sequence):
            self._memory.truncate(sequence, length)
        self._holes |= length < self._ledger.length(sequence)
        self._ledger.truncate(sequence, length)

    # -- giving way ------------------------------------------------------------------------------

    def _let_go(self, spare: int | None = None) -> None:
        """Park, or drop, the least recently used idle sequence other than `spare`."""
        sequence = next((s for s in self._idle if s != spare), None)
        if sequence is None:
            return
        del self._idle[sequence]
        if self._lost(sequence) >= _LEAST_PARKED:
            self._park(sequence)
        self._free(sequence)

    def _lost(self, sequence: int) -> int:
        """Tokens to compute again if a sequence goes: those that nobody else holds, or all where it cannot be cut."""
        length = self._ledger.length(sequence)
        whole = length > 1 and self._memory.reusable(sequence, length - 1) < length - 1
        return length if whole else self._tree.unique(sequence)

    def _park(self, sequence: int) -> None:
        if self._limits.parked_bytes <= 0:
            return
        parked = self._memory.park(sequence)
        if parked.nbytes > self._limits.parked_bytes:
            return
        while self._parked_bytes + parked.nbytes > self._limits.parked_bytes:
            self._drop_oldest()
        self._parked[self._next_parked] = parked
        self._parked_bytes += parked.nbytes
        self._tree.rename(sequence, self._next_parked)
        self._next_parked += 1

    def _drop_oldest(self) -> None:
        holder = next(iter(self._parked))
        self._parked_bytes -= self._parked.pop(holder).nbytes
        self._tree.remove(holder)

    def _free(self, sequence: int) -> None:
        self._tree.remove(sequence)
        self._memory.free(sequence)
        self._ledger.close(sequence)
        self._holes = True
        if self._ledger.used == 0:
            self._holes = False
            self._high_water = self.placed = 0
