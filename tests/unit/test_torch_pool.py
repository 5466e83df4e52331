"""The paged pool against plain lists: what a sequence holds is what was written for it, whoever shares its blocks."""

from __future__ import annotations

import pytest
from edgellm_torch.pool import BLOCK, GONE, Group, Pool, blocks_for
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

SEQUENCES = 6
BLOCKS = 40
NUMBERS = st.integers(0, SEQUENCES - 1)
Memory = dict[tuple[int, int, int], int]  # (group, block, place in it) -> the token written there


class Blocks(RuleBasedStateMachine):
    """40 blocks, and half as many for layers with a window. Tokens are written as a step would write them."""

    @initialize(window=st.sampled_from([1, 5, 16, 33]))
    def start(self, window: int) -> None:
        self.window = window
        self.pool = Pool([(BLOCKS, 0), (BLOCKS // 2, window)], SEQUENCES)
        self.texts: list[list[int]] = [[] for _ in range(SEQUENCES)]
        self.memory: Memory = {}
        self.parked: list[tuple[list[int], list[int]]] = []  # text, blocks forgotten
        self.clock = 0

    @rule(counts=st.dictionaries(NUMBERS, st.integers(1, 90), min_size=1), rejected=st.integers(0, 8))
    def step(self, counts: dict[int, int], rejected: int) -> None:
        before = self.state()
        copies = self.pool.reserve(list(counts.items()))
        if copies is None:
            assert self.lacks_room(counts)
            assert [text for text, _ in before] == [text for text, _ in self.state()]
            return
        for number, group in enumerate(copies):
            for copy in group:
                for place in range(BLOCK):
                    if (token := self.memory.get((number, copy.source, place))) is not None:
                        self.memory[number, copy.target, place] = token
        for sequence, count in counts.items():
            self.write(sequence, count)
        for sequence, count in counts.items():
            length = len(self.texts[sequence]) - min(rejected, count - 1)
            del self.texts[sequence][length:]
            self.pool.settle(sequence, length)

    def write(self, sequence: int, count: int) -> None:
        text = self.texts[sequence]
        for _ in range(count):
            self.clock += 1
            for number, group in enumerate(self.pool.groups):
                block = group.tables[sequence][len(text) // BLOCK]
                assert group.references[block] == 1, "written while shared"
                self.memory[number, block, len(text) % BLOCK] = self.clock
            text.append(self.clock)

    def lacks_room(self, counts: dict[int, int]) -> bool:
        """Some group has too few blocks, even if it forgot all it may."""
        for group in self.pool.groups:
            held = {
                block
                for sequence, table in enumerate(group.tables)
                for block in table[group.first(len(self.texts[sequence])) :]
            }
            more = sum(
                blocks_for(len(self.texts[s]) + count) - blocks_for(len(self.texts[s])) for s, count in counts.items()
            )
            if len(held) + more + len(counts) > group.blocks:
                return True
        return False

    @rule(pair=st.tuples(NUMBERS, NUMBERS), part=st.floats(0, 1))
    def fork(self, pair: tuple[int, int], part: float) -> None:
        source, target = pair
        if source == target:
            return
        self.free(target)
        length = int(part * len(self.texts[source]))
        if self.pool.reusable(source, length) < length:
            with pytest.raises(ValueError, match="no longer holds"):
                self.pool.fork(source, target, length)
            return
        self.pool.fork(source, target, length)
        self.texts[target] = self.texts[source][:length]

    @rule(sequence=NUMBERS, part=st.floats(0, 1))
    def truncate(self, sequence: int, part: float) -> None:
        length = int(part * len(self.texts[sequence]))
        if self.pool.reusable(sequence, length) == length:
            self.pool.truncate(sequence, length)
            del self.texts[sequence][length:]

    @rule(sequence=NUMBERS)
    def free(self, sequence: int) -> None:
        self.pool.free(sequence)
        self.texts[sequence] = []

    @rule(sequence=NUMBERS)
    def park(self, sequence: int) -> None:
        self.parked.append((list(self.texts[sequence]), [group.forgotten(sequence) for group in self.pool.groups]))

    @rule(sequence=NUMBERS)
    def unpark(self, sequence: int) -> None:
        if not self.parked:
            return
        text, forgotten = self.parked.pop()
        self.free(sequence)
        before = self.state()
        if not self.pool.open(sequence, len(text), forgotten):
            assert before == self.state()
            return
        self.texts[sequence] = text
        for number, group in enumerate(self.pool.groups):
            for position in range(forgotten[number] * BLOCK, len(text)):
                block = group.tables[sequence][position // BLOCK]
                assert group.references[block] == 1
                self.memory[number, block, position % BLOCK] = text[position]

    def state(self) -> list[tuple[int, int]]:
        return [(length, group.free) for length in self.pool.lengths for group in self.pool.groups]

    @invariant()
    def everything_a_sequence_needs_is_there(self) -> None:
        for sequence, text in enumerate(self.texts):
            assert self.pool.lengths[sequence] == len(text)
            for number, group in enumerate(self.pool.groups):
                table = group.tables[sequence]
                assert len(table) == blocks_for(len(text))
                gone = group.forgotten(sequence)
                assert all((block == GONE) == (index < gone) for index, block in enumerate(table))
                assert not group.window or gone * BLOCK <= max(0, len(text) - group.window + 1)
                assert group.window or gone == 0
                for position in range(gone * BLOCK, len(text)):
                    assert self.memory[number, table[position // BLOCK], position % BLOCK] == text[position]

    @invariant()
    def the_ledger_balances(self) -> None:
        for group in self.pool.groups:
            held = [block for table in group.tables for block in table if block != GONE]
            assert [held.count(block) for block in range(group.blocks)] == group.references
            assert len(set(held)) == group.blocks - group.free

    def teardown(self) -> None:
        for sequence in range(SEQUENCES):
            self.pool.free(sequence)
        assert all(group.free == group.blocks for group in self.pool.groups), "a block has leaked"


Blocks.TestCase.settings = settings(max_examples=60, stateful_step_count=40)
TestBlocks = Blocks.TestCase


def test_a_shared_tail_is_copied_once_for_each_writer_but_the_last() -> None:
    pool = Pool([(4, 0)], 3)  # just enough
    pool.reserve([(0, 20)])
    pool.settle(0, 20)
    pool.fork(0, 1, 20)
    pool.fork(0, 2, 18)
    tail = pool.groups[0].tables[0][1]
    copies = pool.reserve([(0, 1), (1, 1), (2, 1)])
    assert copies is not None
    assert [copy.source for copy in copies[0]] == [tail, tail]
    assert pool.groups[0].tables[2][1] == tail
    assert pool.groups[0].free == 0


def test_windows_are_forgotten_only_when_room_is_short() -> None:
    pool = Pool([(20, 0), (6, 16)], 2)
    for _ in range(4):
        assert pool.reserve([(0, 20)]) is not None
        pool.settle(0, pool.lengths[0])
    assert pool.groups[1].forgotten(0) == 0
    assert pool.reusable(0, 40) == 40
    assert pool.reserve([(0, 20)]) == [[], []]
    pool.settle(0, 100)
    assert pool.groups[1].forgotten(0) == 4
    assert pool.reusable(0, 79) == 79
    assert pool.reusable(0, 78) == 0
    with pytest.raises(ValueError, match="position 40"):
        pool.truncate(0, 40)


def test_what_a_step_may_take_back_is_not_forgotten() -> None:
    """A row with guesses: the window moves when it is certain which of them stay."""
    pool = Pool([(9, 0), (4, 16)], 2)
    assert pool.reserve([(0, 33)]) is not None
    pool.settle(0, 33)
    assert pool.reserve([(0, 16)]) is not None
    assert pool.reserve([(1, 32)]) is None
    pool.settle(0, 34)
    assert pool.groups[1].forgotten(0) == 0
    assert pool.reserve([(1, 32)]) is not None
    assert pool.groups[1].forgotten(0) == 1


def test_mixed_lengths_fill_nine_tenths_of_the_blocks_in_use() -> None:
    pool = Pool([(4096, 0)], 64)
    for sequence in range(64):
        length = 40 + 37 * sequence % 900
        pool.reserve([(sequence, length)])
        pool.settle(sequence, length)
    (group,) = pool.groups
    assert 0.9 < sum(pool.lengths) / BLOCK / (group.blocks - group.free) < 1


def test_a_group_without_a_window_forgets_nothing() -> None:
    group = Group(4, 1)
    assert group.first(1000) == 0
