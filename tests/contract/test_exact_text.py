"""With `exact`, text is decided by the request alone: byte for byte, whatever else is computed, cached or guessed."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from contract.answers import Answers
from contract.engines import LAYERS, PLACEMENT, Engine, open_engine
from shortened import shortened

from edgellm.contracts.request import Sampling
from edgellm.engine.limits import Limits
from edgellm.errors import LoadFailed

EXACT = msgspec.structs.replace(PLACEMENT, exact=True, capacity=4096, max_sequences=16)
COPY = (
    "Repeat this text word for word, twice: The keeper of the lighthouse wrote one line about the weather every "
    "evening, and one evening the book was gone; so he wrote the line on the wall, and the next one below it."
)
TOPICS = ("rain", "bread", "the sea", "trains", "cats", "old maps", "snow")
WARM = Sampling(temperature=0.8, top_p=0.95, top_k=40, seed=11, repeat_penalty=1.05)
TOKENS = {"llamacpp-smollm2": 60, "torch-smollm2": 24, "torch-whole": 24}
WHOLE = pytest.param("torch-whole", marks=[pytest.mark.slow, pytest.mark.timeout(900)])  # all layers: minutes


@pytest.fixture(scope="module", params=["llamacpp-smollm2", "torch-smollm2", WHOLE])
def starter(request: pytest.FixtureRequest, smollm2: Path, tmp_path_factory: pytest.TempPathFactory) -> Engine:
    if request.param == "torch-smollm2":
        smollm2 = shortened(smollm2, LAYERS["torch-smollm2"], tmp_path_factory.mktemp("short"))
    return open_engine(request.param, smollm2)


@pytest.fixture(scope="module")
def alone(starter: Engine) -> dict[float, str]:
    """By temperature: the answer with no one else about, nothing cached and nothing guessed."""
    texts = {}
    for sampling in (WARM, Sampling(temperature=0.0)):
        answers = Answers(starter, EXACT, TOKENS[starter.name])
        answers.ask("x", COPY, sampling, drafts=False)
        answers.run()
        texts[sampling.temperature or 0.0] = answers.text("x")
        assert answers.end("x").timings.drafted == 0
    return texts


@pytest.mark.parametrize("sampling", [WARM, Sampling(temperature=0.0)], ids=["warm", "greedy"])
def test_drafts_cached_prefixes_and_asking_twice_change_nothing(
    starter: Engine, alone: dict[float, str], sampling: Sampling
) -> None:
    answers = Answers(starter, EXACT, TOKENS[starter.name], Limits(drafts="auto", decode_step_s=60.0))
    answers.let_guesses_pay()
    for name in ("first", "second"):
        answers.ask(name, COPY, sampling)
        answers.run()
        assert answers.text(name) == alone[sampling.temperature or 0.0]
    assert answers.end("first").timings.drafted > 0
    assert answers.end("second").usage.cached_tokens > 0


def test_a_batch_of_eight_changes_nothing(starter: Engine, alone: dict[float, str]) -> None:
    answers = Answers(starter, EXACT, TOKENS[starter.name])
    answers.ask("other", f"Tell me about {TOPICS[0]}.", WARM)
    for _ in range(5):
        answers.take(answers.core.step())
    answers.ask("x", COPY, WARM)
    for topic in TOPICS[1:]:
        answers.ask(topic, f"Tell me a long story about {topic}.", Sampling(temperature=1.0, seed=3))
    answers.run()
    assert answers.text("x") == alone[0.8]


def test_suspension_changes_nothing(starter: Engine, alone: dict[float, str]) -> None:
    """In a pool too small for all, with priorities: put aside, and resumed from a copy or computed anew."""
    for parked in (0, 64 << 20):
        small = msgspec.structs.replace(EXACT, context=512, capacity=512)
        limits = Limits(step_s=60.0, decode_step_s=60.0, parked_bytes=parked, drafts="off")  # on a slow machine, too
        answers = Answers(starter, small, TOKENS[starter.name], limits)
        answers.ask("x", COPY, WARM, priority=5)
        job = answers.core.scheduler.waiting[0]
        for _ in range(12):
            answers.take(answers.core.step())
        for topic in TOPICS[:5]:
            answers.ask(topic, f"Tell me a long story about {topic}. {COPY}", WARM)
        answers.run()
        assert job.suspensions > 0
        assert answers.text("x") == alone[0.8]


def test_types_that_round_by_company_are_refused(gemma3: Path) -> None:
    """As they lie in the file: rearranged for some CPUs' tiles, they do not."""
    engine = open_engine("llamacpp-gemma3", gemma3)
    with pytest.raises(LoadFailed, match="Q4_K"):
        engine.load(msgspec.structs.replace(EXACT, spills=True))


def test_keys_and_values_that_round_by_company_are_refused(smollm2: Path) -> None:
    engine = open_engine("llamacpp-smollm2", smollm2)
    with pytest.raises(LoadFailed, match="q8_0") as caught:
        engine.load(msgspec.structs.replace(EXACT, kv_type="q8_0"))
    assert "kv_type" in (caught.value.hint or "")
