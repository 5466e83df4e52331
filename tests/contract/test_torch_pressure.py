"""The scheduler on the torch engine in a pool of 40 blocks: prefixes shared, sequences parked, jobs that give way."""

from __future__ import annotations

import gc
import random
from collections import Counter
from collections.abc import Sequence
from typing import Any, ClassVar, NamedTuple

import msgspec
import psutil
import pytest
from contract.answers import Answers
from contract.engines import TINY, Engine, tiny_model
from edgellm_torch import gauge
from edgellm_torch.plugin import TorchPlugin
from edgellm_torch.pool import BLOCK, GONE, blocks_for
from edgellm_torch.runner import TorchRunner
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from edgellm.contracts.request import Sampling
from edgellm.contracts.runner import Row
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
    """A request. The same text and seed give the same answers, whenever it comes."""

    text: str
    seed: int
    priority: int
    drafts: bool
    choices: int


ASKS = st.builds(
    Ask,
    st.builds(str.__add__, st.sampled_from(BEGINNINGS), st.text("abc ", min_size=1, max_size=60)),
    st.integers(1, 3),
    st.integers(0, 2),
    st.booleans(),
    st.sampled_from((1, 1, 2)),
)


ONE_STEP = pytest.param("torch-tiny-gemma3", marks=pytest.mark.slow)  # with two in flight there are such steps, too


@pytest.fixture(scope="module", params=[ONE_STEP, "torch-tiny-ahead"])
def engine(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Engine:
    path = tiny_model(request.param, tmp_path_factory.mktemp("tiny"))
    return Engine(request.param, TorchPlugin(), read_model(path))


@pytest.fixture(scope="module")
def quiet(engine: Engine) -> Answers:
    """For answers that nobody shares the room with."""
    return Answers(engine, ROOM, TOKENS, Limits(drafts="off", parked_bytes=0))


def ask_for(answers: Answers, name: str, ask: Ask) -> None:
    penalty = 1.1 if ask.seed == 1 else None  # who looks back keeps steps from being planned ahead
    sampling = Sampling(temperature=0.8, top_k=40, seed=ask.seed, repeat_penalty=penalty)
    answers.ask(name, ask.text, sampling, drafts=ask.drafts, priority=ask.priority, n=ask.choices)


class Watched(Answers):
    """Whose pool is looked at whenever a step is about to write."""

    def __init__(self, engine: Engine, limits: Limits) -> None:
        super().__init__(engine, ROOM, TOKENS, limits, warm=False)
        assert isinstance(self.runner, TorchRunner)
        self.torch = self.runner
        self.pool = self.torch._pool
        assert self.pool.groups[0].blocks == BLOCKS
        self._run = self.torch._run
        self.torch._run = self._look  # type: ignore[method-assign]

    def _look(self, rows: Sequence[Row]) -> Any:
        for row in rows:
            first, end = row.start // BLOCK, blocks_for(row.start + len(row.tokens) + len(row.draft))
            for group in self.pool.groups:
                written = group.tables[row.sequence][first:end]
                assert [group.references[block] for block in written] == [1] * (end - first), "written while shared"
        return self._run(rows)

    def check_books(self) -> None:
        for group in self.pool.groups:
            held = Counter(block for table in group.tables for block in table if block != GONE)
            assert [held[block] for block in range(group.blocks)] == group.references
        assert self.core.scheduler.cache.used <= self.runner.info.capacity

    def end_all(self) -> None:
        """To the last answer; then no block may be in use."""
        self.run()
        self.core.scheduler.cache.let_go_all()
        assert [group.free for group in self.pool.groups] == [group.blocks for group in self.pool.groups]


class CrowdMachine(RuleBasedStateMachine):
    """Requests that come and go in a room for a few: no block is lost, none written while shared, text is as alone."""

    engine: ClassVar[Engine]
    quiet: ClassVar[Answers]
    told: ClassVar[dict[tuple[str, int, int], list[str]]] = {}  # answers to nobody else about

    @initialize(parked=st.sampled_from([0, 1 << 20]))
    def start(self, parked: int) -> None:
        self.crowd = Watched(self.engine, Limits(drafts="auto", parked_bytes=parked))
        self.asked: dict[str, Ask] = {}
        self.left: set[str] = set()

    @rule(ask=ASKS)
    def arrive(self, ask: Ask) -> None:
        name = str(len(self.asked))
        self.asked[name] = ask
        ask_for(self.crowd, name, ask)

    @rule(steps=st.integers(1, 12))
    def work(self, steps: int) -> None:
        for _ in range(steps):
            self.crowd.take(self.crowd.core.step())

    @rule(number=st.integers(0, 30))
    def leave(self, number: int) -> None:
        self.crowd.core.cancel(str(number))
        self.left.add(str(number))

    @invariant()
    def books_balance(self) -> None:
        if hasattr(self, "crowd"):
            self.crowd.check_books()

    def teardown(self) -> None:
        if not hasattr(self, "crowd"):
            return
        self.crowd.end_all()
        self.crowd.runner.close()
        for name, ask in self.asked.items():
            if name not in self.left:
                found = [self.crowd.text(name, choice) for choice in range(ask.choices)]
                assert found == self.alone(ask), ask

    def alone(self, ask: Ask) -> list[str]:
        known = (ask.text, ask.seed, ask.choices)
        if known not in self.told:
            self.quiet.events.pop("alone", None)
            ask_for(self.quiet, "alone", ask._replace(drafts=False))
            self.quiet.run()
            self.told[known] = [self.quiet.text("alone", choice) for choice in range(ask.choices)]
        return self.told[known]


@pytest.fixture(scope="module")
def machine(engine: Engine, quiet: Answers) -> type[CrowdMachine]:
    CrowdMachine.engine, CrowdMachine.quiet = engine, quiet
    return CrowdMachine


def test_a_crowd_changes_no_text_and_loses_no_block(machine: type[CrowdMachine]) -> None:
    seen = [Phase.generate]  # the many crowds below are for finding out what exactly it takes
    few = settings(max_examples=3, stateful_step_count=12, phases=seen)
    run_state_machine_as_test(machine, settings=few)


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_the_same_with_many_crowds(machine: type[CrowdMachine]) -> None:
    run_state_machine_as_test(machine, settings=settings(max_examples=30, stateful_step_count=40))


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_1000_requests_of_whom_many_leave_keep_nothing(engine: Engine) -> None:
    """KV, memory, descriptors and threads are where they were after the first few hundred."""
    dice = random.Random(7)
    crowd = Watched(engine, Limits(drafts="auto", parked_bytes=1 << 20))
    me = psutil.Process()
    threads = files = memory = 0
    for number in range(1000):
        text = dice.choice(BEGINNINGS) + "".join(dice.choices("abc ", k=dice.randint(1, 60)))
        ask = Ask(text, number, dice.randint(0, 2), dice.random() < 0.5, dice.choice((1, 1, 2)))
        ask_for(crowd, str(number), ask)
        for _ in range(dice.randint(0, 12)):
            crowd.take(crowd.core.step())
        if dice.random() < 0.4:
            crowd.core.cancel(str(number - dice.randint(0, 5)))
        if number % 200 == 199:
            crowd.end_all()
            crowd.events.clear()
            gc.collect()
        if number == 399:
            threads, files, memory = me.num_threads(), descriptors(me), own_memory(me)
    assert crowd.core.scheduler.suspended > 20
    assert me.num_threads() <= threads  # of others in this process, some may have ended meanwhile
    assert descriptors(me) <= files
    assert own_memory(me) - memory < 8 << 20


def own_memory(process: psutil.Process) -> int:
    """Without the pages of files, which the system maps as it likes, where it tells them apart."""
    anonymous = gauge._resident("RssAnon")
    return int(process.memory_info().rss) if anonymous is None else anonymous


def descriptors(process: psutil.Process) -> int:
    count: int = process.num_fds() if hasattr(process, "num_fds") else process.num_handles()
    return count


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
    answers.let_guesses_pay()
    answers.ask("guessed", LONG, Sampling(temperature=0.0))
    answers.run()
    quiet.ask("plain", LONG, Sampling(temperature=0.0), drafts=False)
    quiet.run()
    assert answers.text("guessed") == quiet.text("plain")
    timings = answers.end("guessed").timings
    assert timings.accepted == timings.drafted > 0
