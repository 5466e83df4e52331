"""The scheduler on the torch engine in a pool of 40 blocks: prefixes shared, sequences parked, jobs that give way."""

from __future__ import annotations

from typing import NamedTuple

import msgspec
import pytest
from contract.answers import Answers
from contract.engines import TINY, Engine, tiny_model
from edgellm_torch.plugin import TorchPlugin
from edgellm_torch.pool import BLOCK
from edgellm_torch.runner import TorchRunner
from hypothesis import given, settings
from hypothesis import strategies as st

from edgellm.contracts.request import Sampling
from edgellm.engine.draft_model import DraftModel
from edgellm.engine.limits import Limits
from edgellm.formats.gguf import read_model

SEQUENCES = 6
BLOCKS = 40
ROOM = msgspec.structs.replace(
    TINY, context=400, capacity=(BLOCKS - SEQUENCES) * BLOCK, max_sequences=SEQUENCES, batch_tokens=96, threads=1
)
LONG = "The keeper of the lighthouse wrote one line about the weather. " * 2
BEGINNINGS = ("", "The keeper of the lighthouse, ", LONG)
TOKENS = 16


class Ask(NamedTuple):
    """A request, some steps after the one before. The same text and seed give the same answer, whenever it comes."""

    text: str
    seed: int
    priority: int
    wait: int
    drafts: bool


ASKS = st.builds(
    Ask,
    st.builds(str.__add__, st.sampled_from(BEGINNINGS), st.text("abc ", min_size=1, max_size=60)),
    st.integers(1, 3),
    st.integers(0, 2),
    st.integers(0, 12),
    st.booleans(),
)


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Engine:
    path = tiny_model("torch-tiny-gemma3", tmp_path_factory.mktemp("tiny"))
    return Engine("torch-tiny-gemma3", TorchPlugin(), read_model(path))


@pytest.fixture(scope="module")
def quiet(engine: Engine) -> Answers:
    """For answers that nobody shares the room with."""
    return Answers(engine, ROOM, TOKENS, Limits(drafts="off", parked_bytes=0))


def sampling(ask: Ask) -> Sampling:
    return Sampling(temperature=0.8, top_k=40, seed=ask.seed, repeat_penalty=1.1)


CROWDS = given(st.lists(ASKS, min_size=4, max_size=9), st.sampled_from([0, 1 << 20]))


@settings(max_examples=3, deadline=None, derandomize=True)
@CROWDS
def test_text_does_not_depend_on_the_crowd_and_no_block_is_lost(
    engine: Engine, quiet: Answers, asks: list[Ask], parked: int
) -> None:
    check_crowd(engine, quiet, asks, parked)


@pytest.mark.slow
@pytest.mark.timeout(600)
@settings(max_examples=40, deadline=None)
@CROWDS
def test_the_same_with_many_crowds(engine: Engine, quiet: Answers, asks: list[Ask], parked: int) -> None:
    check_crowd(engine, quiet, asks, parked)


def check_crowd(engine: Engine, quiet: Answers, asks: list[Ask], parked: int) -> None:
    crowd = Answers(engine, ROOM, TOKENS, Limits(drafts="auto", parked_bytes=parked), warm=False)
    assert isinstance(crowd.runner, TorchRunner)
    pool = crowd.runner._pool
    assert pool.groups[0].blocks == BLOCKS
    for number, ask in enumerate(asks):
        for _ in range(ask.wait):
            crowd.take(crowd.core.step())
        crowd.ask(str(number), ask.text, sampling(ask), drafts=ask.drafts, priority=ask.priority)
    crowd.run()
    for number, ask in enumerate(asks):
        quiet.events.pop("alone", None)
        quiet.ask("alone", ask.text, sampling(ask), drafts=False)
        quiet.run()
        assert crowd.text(str(number)) == quiet.text("alone"), ask
    for sequence in range(SEQUENCES):
        crowd.runner.free(sequence)
    assert [group.free for group in pool.groups] == [group.blocks for group in pool.groups]
    crowd.runner.close()


def test_the_crowd_does_give_way(engine: Engine) -> None:
    """Eight conversations of 130 tokens and more in a room for 544: some are suspended, all of them end."""
    crowd = Answers(engine, ROOM, TOKENS, Limits(parked_bytes=1 << 20))
    for number in range(8):
        crowd.ask(str(number), f"{number} of eight. " + LONG, Sampling(seed=number), priority=8 - number)
        crowd.take(crowd.core.step())
    crowd.run()
    assert crowd.core.scheduler.suspended > 0
    assert all(crowd.end(str(number)).usage.completion_tokens > 0 for number in range(8))


def test_a_draft_model_guesses_and_changes_nothing(engine: Engine, quiet: Answers) -> None:
    """The model guesses for itself, so all guesses come true."""
    answers = Answers(engine, ROOM, TOKENS, Limits(drafts="auto", decode_step_s=60.0))
    answers.core.scheduler.speculator.model = DraftModel(engine.load(ROOM))
    for costs in (1, 16):  # rows are free, as far as the speculator knows: it will guess whenever it can
        answers.core.scheduler.decode_costs.observe(costs, 1e-6)
    answers.ask("guessed", LONG, Sampling(temperature=0.0))
    answers.run()
    quiet.ask("plain", LONG, Sampling(temperature=0.0), drafts=False)
    quiet.run()
    assert answers.text("guessed") == quiet.text("plain")
    timings = answers.end("guessed").timings
    assert timings.accepted == timings.drafted > 0
