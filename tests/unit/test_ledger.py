"""The ledger against a naive model that keeps every cell as an object."""

from __future__ import annotations

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from edgellm.engine.ledger import Ledger

CAPACITY, SEQUENCES = 64, 6


class LedgerMachine(RuleBasedStateMachine):
    """Random operations; the reference holds, per sequence, the identities of its cells."""

    def __init__(self) -> None:
        super().__init__()
        self.ledger = Ledger(CAPACITY, SEQUENCES)
        self.cells: dict[int, list[int]] = {}
        self.next_cell = 0

    @precondition(lambda self: len(self.cells) < SEQUENCES)
    @rule()
    def open(self) -> None:
        sequence = self.ledger.open()
        assert sequence not in self.cells
        self.cells[sequence] = []

    @precondition(lambda self: self.cells)
    @rule(data=st.data(), count=st.integers(1, 20))
    def extend(self, data: st.DataObject, count: int) -> None:
        sequence = data.draw(st.sampled_from(sorted(self.cells)))
        if count > CAPACITY - self.used():
            with pytest.raises(ValueError):
                self.ledger.extend(sequence, count)
            return
        self.ledger.extend(sequence, count)
        self.cells[sequence] += range(self.next_cell, self.next_cell + count)
        self.next_cell += count

    @precondition(lambda self: 0 < len(self.cells) < SEQUENCES)
    @rule(data=st.data())
    def fork(self, data: st.DataObject) -> None:
        source = data.draw(st.sampled_from(sorted(self.cells)))
        length = data.draw(st.integers(0, len(self.cells[source])))
        target = self.ledger.fork(source, length)
        assert target not in self.cells
        self.cells[target] = self.cells[source][:length]

    @precondition(lambda self: self.cells)
    @rule(data=st.data())
    def truncate(self, data: st.DataObject) -> None:
        sequence = data.draw(st.sampled_from(sorted(self.cells)))
        length = data.draw(st.integers(0, len(self.cells[sequence])))
        self.ledger.truncate(sequence, length)
        del self.cells[sequence][length:]

    @precondition(lambda self: self.cells)
    @rule(data=st.data())
    def close(self, data: st.DataObject) -> None:
        sequence = data.draw(st.sampled_from(sorted(self.cells)))
        self.ledger.close(sequence)
        del self.cells[sequence]

    def used(self) -> int:
        return len({cell for cells in self.cells.values() for cell in cells})

    @precondition(lambda self: self.cells)
    @rule(data=st.data())
    def used_by(self, data: st.DataObject) -> None:
        some = data.draw(st.sets(st.sampled_from(sorted(self.cells))))
        assert self.ledger.used_by(some) == len({cell for sequence in some for cell in self.cells[sequence]})

    @invariant()
    def balances(self) -> None:
        assert self.ledger.used == self.used()
        assert self.ledger.free == CAPACITY - self.used()
        assert self.ledger.free_sequences == SEQUENCES - len(self.cells)
        for sequence, cells in self.cells.items():
            assert self.ledger.length(sequence) == len(cells)


TestLedger = LedgerMachine.TestCase


def test_impossible_operations_are_refused() -> None:
    ledger = Ledger(4, 1)
    sequence = ledger.open()
    ledger.extend(sequence, 2)
    with pytest.raises(ValueError, match="no free sequence"):
        ledger.open()
    with pytest.raises(ValueError, match="truncate"):
        ledger.truncate(sequence, 3)
    with pytest.raises(ValueError, match="fork"):
        ledger.fork(sequence, 3)
