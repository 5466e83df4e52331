"""What every TokenRunner promises: steps, sequences, room, draws."""

from __future__ import annotations

import msgspec
import pytest
from contract.driving import GREEDY, STORY, WARM, answer, append, fill, prompt, step, token
from contract.engines import TINY, Engine

from edgellm.contracts.runner import Row, TokenRunner


def test_info_says_what_was_placed(engine: Engine, runner: TokenRunner) -> None:
    info = runner.info
    assert (info.context, info.max_sequences, info.batch_tokens) == (1024, 8, 256)
    assert info.capacity >= 1280
    assert {"temperature", "top_k", "top_p", "seed"} <= info.samplers
    assert info.engine == engine.plugin.name


def test_greedy_answers_repeat(engine: Engine, runner: TokenRunner) -> None:
    ids = prompt(engine.tokenizer)
    first = answer(runner, 0, ids, 8)
    assert answer(runner, 1, ids, 8) == first
    assert len(set(first)) > 1


def test_chunks_do_not_matter(engine: Engine, runner: TokenRunner) -> None:
    ids = prompt(engine.tokenizer)
    whole = token(step(runner, Row(0, 0, ids, GREEDY))[0])
    for sequence, chunk in ((1, 5), (2, 32)):
        assert answer(runner, sequence, ids, 1, chunk=chunk) == [whole]


def test_rows_of_one_step_do_not_see_each_other(engine: Engine, runner: TokenRunner) -> None:
    if not engine.exact:
        pytest.skip("its kernels round differently for different numbers of rows")
    prompts = [prompt(engine.tokenizer, STORY[start:]) for start in (80, 100, 120, 140)]
    specs = [GREEDY, WARM, msgspec.structs.replace(WARM, seed=7), GREEDY]
    alone = [answer(runner, 4 + i, prompts[i], 6, specs[i]) for i in range(4)]
    for sequence, ids in enumerate(prompts):
        append(runner, sequence, 0, ids[:-1])
    last = [ids[-1] for ids in prompts]
    together: list[list[int]] = [[], [], [], []]
    for position in range(6):
        rows = [
            Row(sequence, len(prompts[sequence]) - 1 + position, [last[sequence]], specs[sequence], position)
            for sequence in range(4)
        ]
        for sequence, result in enumerate(step(runner, *rows)):
            last[sequence] = token(result)
            together[sequence].append(last[sequence])
    assert together == alone


def test_results_come_in_the_order_of_the_rows(engine: Engine, runner: TokenRunner) -> None:
    """Prefill that draws, prefill that does not, and decode, in one step."""
    long, short = prompt(engine.tokenizer), prompt(engine.tokenizer, "The lighthouse")
    expected = token(step(runner, Row(0, 0, short, GREEDY))[0])
    following = token(step(runner, Row(0, len(short), [expected], GREEDY, 1))[0])
    runner.free(0)
    append(runner, 3, 0, short)
    rows = Row(5, 0, long[:9]), Row(3, len(short), [expected], GREEDY, 1), Row(1, 0, short, GREEDY)
    middle = step(runner, *rows)
    assert [result.tokens for result in middle] == [(), (following,), (expected,)]
    assert [result.error for result in middle] == [None, None, None]


def test_fork_shares_and_then_diverges(engine: Engine, runner: TokenRunner) -> None:
    ids = prompt(engine.tokenizer)
    shared = len(ids) - 6
    other = ids[:shared] + prompt(engine.tokenizer, " But the sea was calm and nobody had seen")[-8:]
    expected, different = answer(runner, 6, ids, 6), answer(runner, 7, other, 6)
    append(runner, 0, 0, ids[:-1])
    if runner.reusable(0, shared) < shared:
        pytest.skip("this memory cannot be shared before its end")
    runner.fork(0, 1, shared)
    runner.fork(0, 2, len(ids) - 1)
    count = 6 if engine.exact else 2  # a prompt computed in other chunks may round differently, and then diverge
    assert answer(runner, 1, other, count, held=shared) == different[:count]
    assert answer(runner, 0, ids, count, held=len(ids) - 1) == expected[:count]
    runner.free(0)
    assert answer(runner, 2, ids, count, held=len(ids) - 1) == expected[:count]


def test_truncate_and_continue_equals_a_fresh_start(engine: Engine, runner: TokenRunner) -> None:
    ids = prompt(engine.tokenizer)
    expected = answer(runner, 0, ids, 6)
    if runner.reusable(0, len(ids) - 4) < len(ids) - 4:
        pytest.skip("this memory cannot be cut before its end")
    runner.truncate(0, len(ids) - 4)
    assert answer(runner, 0, ids, 6, held=len(ids) - 4) == expected


def test_truncate_to_nothing_and_free_empty_a_sequence(engine: Engine, runner: TokenRunner) -> None:
    ids = prompt(engine.tokenizer)
    first = answer(runner, 0, ids, 2)
    runner.truncate(0, 0)
    assert answer(runner, 0, ids, 2) == first
    runner.free(0)
    runner.free(0)
    assert answer(runner, 0, ids, 2) == first


def test_seeds_choices_and_positions_decide_the_draw(engine: Engine, runner: TokenRunner) -> None:
    ids = prompt(engine.tokenizer)
    hot = msgspec.structs.replace(WARM, temperature=1.5, top_k=0, top_p=1.0)
    first = answer(runner, 0, ids, 8, hot)
    assert answer(runner, 1, ids, 8, hot) == first
    assert answer(runner, 2, ids, 8, msgspec.structs.replace(hot, seed=99)) != first
    assert answer(runner, 3, ids, 8, msgspec.structs.replace(hot, choice=1)) != first


def test_top_k_of_one_and_a_tiny_nucleus_are_greedy(engine: Engine, runner: TokenRunner) -> None:
    ids = prompt(engine.tokenizer)
    expected = answer(runner, 0, ids, 4)
    assert answer(runner, 1, ids, 4, msgspec.structs.replace(WARM, top_k=1)) == expected
    assert answer(runner, 2, ids, 4, msgspec.structs.replace(WARM, top_p=1e-6, top_k=0)) == expected


def test_no_room_leaves_everything_as_it_was(engine: Engine, tiny: TokenRunner) -> None:
    ids = (prompt(engine.tokenizer) * 6)[:200]
    expected = answer(tiny, 0, ids[:21], 3)
    tiny.free(0)
    append(tiny, 0, 0, ids)
    append(tiny, 1, 0, ids[:20])
    assert fill(tiny, 3, ids) >= tiny.info.capacity - 220
    rows = Row(1, 20, [ids[20]], GREEDY, 0), Row(2, 0, ids[:37])
    assert [result.error for result in step(tiny, *rows)] == ["no_room", "no_room"]
    assert [result.error for result in step(tiny, *rows)] == ["no_room", "no_room"]
    tiny.free(0)
    results = step(tiny, *rows)
    assert [result.error for result in results] == [None, None]
    if engine.exact:  # elsewhere a row rounds by the company it was computed in
        assert token(results[0]) == expected[0]
        assert answer(tiny, 1, [*ids[:21], expected[0]], 2, held=21) == expected[1:]


def test_shared_cells_are_counted_once(engine: Engine, tiny: TokenRunner) -> None:
    ids = (prompt(engine.tokenizer) * 6)[:200]
    append(tiny, 0, 0, ids)
    tiny.fork(0, 1, 200)
    tiny.fork(0, 2, 200)
    append(tiny, 1, 200, ids[:20])
    append(tiny, 2, 200, ids[:20])
    tiny.free(0)
    tiny.free(1)
    append(tiny, 3, 0, ids[:30])


BAD_ROWS = {
    "no rows": [],
    "no tokens": [Row(0, 0, [])],
    "sequence too high": [Row(8, 0, [1])],
    "sequence below 0": [Row(-1, 0, [1])],
    "token below 0": [Row(0, 0, [-1])],
    "token too high": [Row(0, 0, [1, 2, 10_000_000])],
    "token beyond 32 bits": [Row(0, 0, [1 << 40])],
    "a gap": [Row(0, 5, [1])],
    "twice in a step": [Row(0, 0, [1]), Row(0, 1, [2])],
    "too many tokens": [Row(0, 0, [1] * 200), Row(1, 0, [1] * 57)],
}


@pytest.mark.parametrize("name", BAD_ROWS)
def test_bad_rows_are_refused_before_anything_happens(engine: Engine, runner: TokenRunner, name: str) -> None:
    with pytest.raises(ValueError):
        runner.submit(BAD_ROWS[name])
    assert answer(runner, 0, prompt(engine.tokenizer, "Still"), 1)


def test_the_context_is_the_end_of_a_sequence(engine: Engine, tiny: TokenRunner) -> None:
    append(tiny, 0, 0, [1] * 250, chunk=125)
    with pytest.raises(ValueError):
        tiny.submit([Row(0, 250, [1] * 7)])
    append(tiny, 0, 250, [1] * 6)


def test_bad_sequences_and_lengths_are_refused(engine: Engine, runner: TokenRunner) -> None:
    append(runner, 0, 0, [1, 2, 3])
    append(runner, 1, 0, [1])
    for source, target, length in (
        (0, 8, 2),
        (8, 2, 0),
        (-1, 2, 0),
        (0, 2, 4),
        (0, 2, -1),
        (0, 1, 2),
        (0, 0, 2),
    ):
        with pytest.raises(ValueError):
            runner.fork(source, target, length)
    for sequence, length in ((8, 0), (-1, 0), (0, 4), (0, -1)):
        with pytest.raises(ValueError):
            runner.truncate(sequence, length)
    for sequence in (-1, 8):
        with pytest.raises(ValueError):
            runner.free(sequence)
        with pytest.raises(ValueError):
            runner.reusable(sequence, 0)
    with pytest.raises(ValueError):
        runner.reusable(0, -1)
    runner.fork(0, 2, 0)
    assert runner.reusable(0, 100) == 3
    assert runner.reusable(2, 100) == 0


def test_a_step_is_collected_once(engine: Engine, runner: TokenRunner) -> None:
    first = runner.submit([Row(0, 0, [1], GREEDY)])
    assert token(runner.collect(first)[0]) >= 0
    with pytest.raises(ValueError):
        runner.collect(first)
    second = runner.submit([Row(1, 0, [1], GREEDY)])
    with pytest.raises(ValueError):
        runner.collect(first)
    assert token(runner.collect(second)[0]) >= 0


def test_a_refused_fork_or_cut_changes_nothing(engine: Engine, tiny: TokenRunner) -> None:
    ids = (prompt(engine.tokenizer) * 6)[:240]
    append(tiny, 0, 0, ids, chunk=120)
    for length in (10, 150, 236):
        held = tiny.reusable(0, length)
        assert held in (0, length)
        if held == 0:
            with pytest.raises(ValueError):
                tiny.fork(0, 1, length)
            with pytest.raises(ValueError):
                tiny.truncate(0, length)
    assert tiny.reusable(0, 240) == 240
    tiny.fork(0, 1, 240)
    alone = token(step(tiny, Row(0, 240, [ids[0]], GREEDY))[0])
    assert token(step(tiny, Row(1, 240, [ids[0]], GREEDY))[0]) == alone


def test_closing_twice_is_fine_and_nothing_works_after(engine: Engine) -> None:
    runner = engine.load(TINY)
    step(runner, Row(0, 0, [1], GREEDY))
    runner.close()
    runner.close()
    for call in (
        lambda: runner.submit([Row(0, 1, [1])]),
        lambda: runner.free(0),
        lambda: runner.reusable(0, 0),
    ):
        with pytest.raises(ValueError, match="closed"):
            call()
