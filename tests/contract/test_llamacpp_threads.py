"""Steps may use any number of threads: what they compute is the same to the last bit."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from contract.answers import Answers
from contract.driving import GREEDY, append, prompt, step
from contract.engines import PLACEMENT, Engine, open_engine
from edgellm_llamacpp import native
from edgellm_llamacpp.native import library
from edgellm_llamacpp.neighbours import ThreadCount
from edgellm_llamacpp.repacking import own_attention
from edgellm_llamacpp.runner import LlamaCppRunner

from edgellm.contracts.engine import Placement
from edgellm.contracts.request import Sampling
from edgellm.contracts.runner import Row

EXACT = msgspec.structs.replace(PLACEMENT, exact=True)


class ByTurns(ThreadCount):
    """Another number of threads for every decode step, however long it took."""

    steps = 0

    @property
    def count(self) -> int:
        self.steps += 1
        return 1 + self.steps % 2


@pytest.fixture(scope="module", params=["smollm2", "gemma3"])
def real(request: pytest.FixtureRequest) -> Engine:
    return open_engine(f"llamacpp-{request.param}", request.getfixturevalue(request.param))


def load(engine: Engine, placement: Placement = PLACEMENT) -> LlamaCppRunner:
    runner = engine.load(placement)
    assert isinstance(runner, LlamaCppRunner)
    return runner


def threads(runner: LlamaCppRunner) -> tuple[int, int]:
    """Of a step of one token, of one of several: as llama.cpp has them."""
    api, pointer = library().api, runner._context.pointer
    return int(api.llama_n_threads(pointer)), int(api.llama_n_threads_batch(pointer))


@pytest.mark.parametrize("length", [60, 700])  # from 512 on llama.cpp's own attention is cut into a piece per thread
def test_logits_do_not_depend_on_the_number_of_threads(real: Engine, length: int) -> None:
    if not own_attention():
        pytest.skip("other builds cut attention into a piece per thread")
    runner = load(real)
    ids = (prompt(real.tokenizer) * 20)[: length + 12]

    def logits(count: int) -> list[bytes]:
        """Of one token, of three rows, of a row with guesses, and of all after a prompt computed anew."""
        runner._threads = (count, count)
        runner._thread_count = ThreadCount(1)
        bits: list[bytes] = []
        append(runner, 0, 0, ids[:length], 256)
        for sequence in (1, 2):
            runner.fork(0, sequence, length)
        single = Row(0, length, ids[length : length + 1], GREEDY)
        several = [
            Row(sequence, length + (sequence == 0), ids[length + 1 : length + 2], GREEDY) for sequence in range(3)
        ]
        guessed = Row(0, length + 2, ids[length + 2 : length + 3], GREEDY, draft=tuple(ids[length + 3 : length + 10]))
        for rows in ([single], several, [guessed]):
            step(runner, *rows)
            bits += [bytes(runner._logits(at)) for at in range(sum(1 + len(row.draft) for row in rows))]
        assert threads(runner) == (count, count)
        for sequence in range(3):
            runner.free(sequence)
        return bits

    with_one, with_two = logits(1), logits(2)
    runner.close()
    assert with_one == with_two


def test_text_does_not_depend_on_when_the_number_changes(real: Engine) -> None:
    texts = []
    for changes in (False, True):
        answers = Answers(real, PLACEMENT, 48)
        runner: Any = answers.runner
        if changes:
            runner._thread_count = ByTurns(2)
        for name in ("first", "second"):
            answers.ask(name, f"Tell me a {name} story.", Sampling(temperature=0.8, seed=4), drafts=False)
        answers.run()
        texts.append([answers.text(name) for name in ("first", "second")])
        runner.close()
    assert texts[0] == texts[1]


def test_prompts_use_all_threads(real: Engine) -> None:
    runner = load(real)
    runner._thread_count = ByTurns(2)
    seen = []
    for start in range(4):
        step(runner, Row(0, start, (5,), GREEDY))
        seen.append(threads(runner))
    step(runner, Row(0, 4, (5, 6, 7)))
    assert seen == [(2, 2), (1, 1)] * 2
    assert threads(runner) == (2, 2)
    runner.close()


@pytest.mark.parametrize("splits", [False, True])
def test_exact_text_keeps_to_one_thread_where_attention_is_split(
    real: Engine, monkeypatch: pytest.MonkeyPatch, splits: bool
) -> None:
    """And takes no part in trials, which would change what is said."""
    if real.name != "llamacpp-smollm2":
        pytest.skip("one model will do")
    monkeypatch.setattr(native, "unsplit", lambda _api: not splits)
    runner = load(real, EXACT)
    assert threads(runner) == ((1, 2) if splits else (2, 2))
    assert runner._thread_count.most == (1 if splits else 2)
    runner.close()
