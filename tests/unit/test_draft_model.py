"""A draft model: it guesses with the large model's own draws, so the text is that of the large model alone."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from fake_runner import FakeBehaviour, FakeRunner, FakeTokenizer

from edgellm.contracts.engine import Placement
from edgellm.contracts.events import Event, Finished, TextDelta
from edgellm.contracts.request import GenerateRequest, Sampling, Text
from edgellm.engine.core import EngineCore
from edgellm.engine.costs import StepCosts
from edgellm.engine.draft_model import DraftModel, check_vocabulary
from edgellm.engine.limits import Limits
from edgellm.engine.speculation import Speculator
from edgellm.errors import LoadFailed

ROOM = Placement(context=512, capacity=1024, max_sequences=4, batch_tokens=64, threads=1, threads_batch=1)
WARM = Sampling(temperature=1.0, seed=9, repeat_penalty=1.2)


class FreeRows(StepCosts):
    """A step takes 0.1 s, however many rows it has."""

    def predict(self, tokens: int, pairs: float = 0.0) -> float:
        return 0.1


def core(draft: FakeRunner | None) -> EngineCore:
    made = EngineCore("fake", FakeRunner(ROOM), FakeTokenizer())
    made.scheduler.speculator = Speculator(made.scheduler.speculator.info, FreeRows(), Limits())
    if draft is not None:
        made.scheduler.speculator.model = DraftModel(draft)
    return made


def answers(
    made: EngineCore, prompts: Sequence[Sequence[int]], sampling: Sampling = WARM
) -> list[tuple[str, Finished]]:
    events: list[list[Event]] = [[] for _ in prompts]
    for number, prompt in enumerate(prompts):
        request = GenerateRequest(id=str(number), model="fake", prompt=Text(""), max_tokens=60, sampling=WARM)
        made.add(request, prompt)
    while not made.idle:
        for name, event in made.step():
            events[int(name)].append(event)
    found = []
    for each in events:
        end = each[-1]
        assert isinstance(end, Finished)
        found.append(("".join(event.text for event in each if isinstance(event, TextDelta)), end))
    return found


PROMPTS = [list(range(40 + number)) for number in range(3)]


def test_a_model_that_agrees_saves_most_steps_and_changes_nothing() -> None:
    plain = core(None)
    expected = [text for text, _ in answers(plain, PROMPTS)]
    made = core(FakeRunner(ROOM))
    found = answers(made, PROMPTS)
    assert [text for text, _ in found] == expected
    assert sum(end.timings.accepted for _, end in found) > 100
    assert made.pipeline.steps < plain.pipeline.steps / 2


@pytest.mark.parametrize(
    "behaviour", [FakeBehaviour(window=5), FakeBehaviour(recurrent=True), FakeBehaviour(end_at=60)]
)
def test_a_model_that_knows_better_changes_nothing(behaviour: FakeBehaviour) -> None:
    expected = [text for text, _ in answers(core(None), PROMPTS)]
    found = answers(core(FakeRunner(ROOM, behaviour)), PROMPTS)
    assert [text for text, _ in found] == expected


def test_a_long_text_is_read_in_parts_and_little_room_is_no_harm() -> None:
    long = [list(range(250)) + list(range(60))]
    expected = [text for text, _ in answers(core(None), long)]
    tight = Placement(context=512, capacity=330, max_sequences=1, batch_tokens=64, threads=1, threads_batch=1)
    found = answers(core(FakeRunner(tight)), long)
    assert [text for text, _ in found] == expected


def test_more_texts_than_sequences_take_turns() -> None:
    many = [list(range(20 + number)) for number in range(4)]
    expected = [text for text, _ in answers(core(None), many)]
    few = Placement(context=512, capacity=1024, max_sequences=2, batch_tokens=64, threads=1, threads_batch=1)
    assert [text for text, _ in answers(core(FakeRunner(few)), many)] == expected


def test_another_vocabulary_is_refused() -> None:
    class Other(FakeTokenizer):
        def token_text(self, token: int) -> str:
            return super().token_text(token + 1 if token < 100 else token)

    check_vocabulary("m", FakeTokenizer(), FakeTokenizer())
    with pytest.raises(LoadFailed, match="another vocabulary"):
        check_vocabulary("m", FakeTokenizer(), Other())
