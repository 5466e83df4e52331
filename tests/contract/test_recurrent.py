"""A recurrent memory on llama.cpp: a state that cannot step back, seen through `reusable`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from contract.driving import GREEDY, append, step
from contract.engines import PLACEMENT
from edgellm_llamacpp.plugin import LlamaCppPlugin
from tiny_mamba import write_mamba

from edgellm.contracts.engine import Tokenizer
from edgellm.contracts.events import Failed, Finished
from edgellm.contracts.request import GenerateRequest, Sampling, Text
from edgellm.contracts.runner import Row, TokenRunner
from edgellm.engine.core import EngineCore
from edgellm.engine.job import Job
from edgellm.formats.gguf import read_model

IDS = [1, *range(10, 90)]


class Loaded:
    def __init__(self, path: Path) -> None:
        plugin = LlamaCppPlugin()
        model = read_model(path)
        self.tokenizer: Tokenizer = plugin.tokenizer(model)
        self.runner: TokenRunner = plugin.load(model, PLACEMENT, lambda _done: None)


@pytest.fixture(scope="module")
def mamba(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Loaded]:
    loaded = Loaded(write_mamba(tmp_path_factory.mktemp("mamba") / "mamba.gguf"))
    yield loaded
    loaded.runner.close()


@pytest.fixture
def runner(mamba: Loaded) -> Iterator[TokenRunner]:
    yield mamba.runner
    for sequence in range(mamba.runner.info.max_sequences):
        mamba.runner.free(sequence)


def go_on(runner: TokenRunner, sequence: int, start: int, token: int, count: int = 12) -> list[int]:
    drawn = [token]
    for position in range(count):
        (result,) = step(runner, Row(sequence, start + position, drawn[-1:], GREEDY, position))
        assert result.error is None
        drawn.extend(result.tokens)
    return drawn[1:]


def test_only_nothing_or_all_of_it_can_be_reused(runner: TokenRunner) -> None:
    append(runner, 0, 0, IDS)
    assert [runner.reusable(0, length) for length in (0, 1, 40, len(IDS) - 1, len(IDS), 500)] == [
        0,
        0,
        0,
        0,
        len(IDS),
        len(IDS),
    ]
    with pytest.raises(ValueError, match="no longer holds"):
        runner.fork(0, 1, 40)
    with pytest.raises(ValueError, match="no longer holds"):
        runner.truncate(0, 40)
    assert runner.info.draft_tokens == 0, "a draft that is wrong could not be taken back"


def test_a_fork_at_the_end_goes_on_like_its_source_and_apart_from_it(runner: TokenRunner) -> None:
    append(runner, 0, 0, IDS)
    runner.fork(0, 1, len(IDS))
    expected = go_on(runner, 0, len(IDS), 20)
    assert go_on(runner, 1, len(IDS), 20) == expected
    append(runner, 2, 0, IDS)
    runner.fork(2, 3, len(IDS))
    go_on(runner, 3, len(IDS), 30)
    assert go_on(runner, 2, len(IDS), 20) == expected


def test_a_copy_comes_back_as_it_was(runner: TokenRunner) -> None:
    append(runner, 0, 0, IDS)
    copy = runner.park(0)
    expected = go_on(runner, 0, len(IDS), 20)
    runner.free(0)
    runner.unpark(copy, 3)
    assert runner.reusable(3, len(IDS)) == len(IDS)
    assert go_on(runner, 3, len(IDS), 20) == expected


def test_conversations_share_what_they_can(mamba: Loaded) -> None:
    """Two that arrive together wait for the common part; a next turn starts where the last one ended."""
    core = EngineCore("mamba", mamba.runner, mamba.tokenizer)
    core.warm_up()
    ends: dict[str, Finished] = {}
    jobs: list[Job] = []

    def run(*requests: tuple[str, list[int]]) -> None:
        for name, ids in requests:
            sampling = Sampling(temperature=0.0)
            request = GenerateRequest(id=name, model="m", prompt=Text(""), max_tokens=8, sampling=sampling)
            core.add(request, ids)
        jobs.extend(core.scheduler.waiting)
        while not core.idle:
            for name, event in core.step():
                assert not isinstance(event, Failed), event
                if isinstance(event, Finished):
                    ends[name] = event

    run(("a", [*IDS, 100, 101]), ("b", [*IDS, 120, 121]))
    assert ends["b"].usage.cached_tokens == len(IDS)
    text = next(job.tokens for job in jobs if job.id.startswith("a"))
    run(("next", [*text, *range(30, 60)]))
    assert ends["next"].usage.cached_tokens == len(text) - 1, "all but the last token, which was drawn and not computed"
    assert core.scheduler.idle
