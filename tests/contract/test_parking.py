"""What every TokenRunner promises of copies outside its pool."""

from __future__ import annotations

import pytest
from contract.driving import answer, append, fill, prompt
from contract.engines import Engine

from edgellm.contracts.runner import TokenRunner


def test_a_copy_comes_back_into_another_sequence_and_continues_exactly(engine: Engine, runner: TokenRunner) -> None:
    ids = prompt(engine.tokenizer)
    expected = answer(runner, 0, ids, 6)
    runner.free(0)
    append(runner, 1, 0, ids[:-1])
    parked = runner.park(1)
    assert parked.length == len(ids) - 1
    assert parked.nbytes > 0
    runner.free(1)
    for sequence in (2, 3):  # a copy can be used more than once
        runner.unpark(parked, sequence)
        assert answer(runner, sequence, ids, 6, held=len(ids) - 1) == expected


def test_parking_leaves_the_sequence_as_it_is(engine: Engine, runner: TokenRunner) -> None:
    ids = prompt(engine.tokenizer)
    expected = answer(runner, 0, ids, 4)
    append(runner, 1, 0, ids[:-1])
    runner.park(1)
    assert answer(runner, 1, ids, 4, held=len(ids) - 1) == expected


def test_a_copy_can_be_forked_once_it_is_back(engine: Engine, runner: TokenRunner) -> None:
    ids = prompt(engine.tokenizer)
    expected = answer(runner, 0, ids, 4)
    append(runner, 1, 0, ids[:-1])
    parked = runner.park(1)
    runner.free(1)
    runner.unpark(parked, 2)
    runner.fork(2, 3, len(ids) - 1)
    assert answer(runner, 3, ids, 4, held=len(ids) - 1) == expected


def test_impossible_returns_are_refused(engine: Engine, runner: TokenRunner) -> None:
    ids = prompt(engine.tokenizer)
    append(runner, 0, 0, ids)
    parked = runner.park(0)
    with pytest.raises(ValueError, match="not empty"):
        runner.unpark(parked, 0)
    with pytest.raises(ValueError, match="not of this runner"):
        runner.unpark(_Foreign(), 1)
    with pytest.raises(ValueError):
        runner.unpark(parked, 99)


def test_a_copy_that_finds_no_room_leaves_all_as_it_was(engine: Engine, runner: TokenRunner) -> None:
    ids = prompt(engine.tokenizer)
    expected = answer(runner, 0, ids, 4)
    parked = runner.park(0)
    filler = (ids * (1 + runner.info.context // len(ids)))[: runner.info.context]
    for sequence in range(1, 1 + runner.info.capacity // len(filler)):
        append(runner, sequence, 0, filler)
    assert fill(runner, 6, filler) >= runner.info.capacity % len(filler) - parked.length
    with pytest.raises(ValueError, match="no room"):
        runner.unpark(parked, 7)
    for sequence in range(8):
        runner.free(sequence)
    assert answer(runner, 7, ids, 4) == expected


class _Foreign:
    length = 3
    nbytes = 8
