"""What requests get from any engine: seeds, stops, choices, log probabilities, contexts that slide."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from contract.driving import prompt
from contract.engines import Engine

from edgellm.contracts.events import ChoiceDone, Event, Failed, Finished, Slid, TextDelta
from edgellm.contracts.request import GenerateRequest, Sampling, Text
from edgellm.contracts.runner import TokenRunner
from edgellm.engine.core import EngineCore
from edgellm.engine.prompt import EncodedPrompt

TOKENS = 12


class Asking:
    """A core on a runner that is empty and has room for 256 tokens."""

    def __init__(self, engine: Engine, runner: TokenRunner) -> None:
        self.core = EngineCore("m", runner, engine.tokenizer)
        self.events: dict[str, list[Event]] = {}
        ends = dict.fromkeys(engine.tokenizer.end_of_generation, -100.0)
        self.endless = Sampling(logit_bias=ends if "logit_bias" in runner.info.samplers else None)

    def add(self, ids: Sequence[int] | EncodedPrompt, name: str = "r", **fields: Any) -> None:
        given: dict[str, Any] = {"max_tokens": TOKENS, "sampling": Sampling(temperature=0.0)} | fields
        given["sampling"] = given["sampling"].over(self.endless)
        request = GenerateRequest(id=name, model="m", prompt=Text(""), **given)
        self.events[name] = [event for _, event in self.core.add(request, ids)]

    def run(self) -> None:
        while not self.core.idle:
            for name, event in self.core.step():
                assert not isinstance(event, Failed), event
                self.events[name].append(event)

    def texts(self, name: str = "r", count: int = 1) -> list[str]:
        said = [event for event in self.events[name] if isinstance(event, TextDelta)]
        return ["".join(event.text for event in said if event.choice == choice) for choice in range(count)]

    def ask(self, ids: Sequence[int] | EncodedPrompt, count: int = 1, **fields: Any) -> list[str]:
        """The texts of `count` choices, from an empty cache."""
        self.add(ids, n=count, **fields)
        self.run()
        return self.texts(count=count)

    @property
    def end(self) -> Finished:
        end = self.events["r"][-1]
        assert isinstance(end, Finished)
        return end


@pytest.fixture
def asking(engine: Engine, tiny: TokenRunner) -> Asking:
    return Asking(engine, tiny)


@pytest.fixture
def ids(engine: Engine) -> list[int]:
    return prompt(engine.tokenizer)[:40]


WARM = Sampling(temperature=1.2, top_k=0, top_p=1.0, seed=5)


def test_a_seed_decides_the_text_alone_and_in_company(engine: Engine, asking: Asking, ids: list[int]) -> None:
    alone = asking.ask(ids, sampling=WARM)
    assert asking.ask(ids, sampling=Sampling(seed=6).over(WARM)) != alone
    if not engine.exact:
        pytest.skip("its kernels round differently for different numbers of rows")
    for seed in (1, 2, 3):
        asking.add(ids[:20], f"other {seed}", sampling=Sampling(temperature=1.0, seed=seed))
    assert asking.ask(ids, sampling=WARM) == alone


def test_a_stop_string_ends_it_and_stays_out(engine: Engine, asking: Asking, ids: list[int]) -> None:
    if not engine.exact:
        pytest.skip("its kernels round differently for different numbers of rows")
    (whole,) = asking.ask(ids)
    stop = whole[len(whole) // 2 :][:3]
    assert asking.ask(ids, stop=(stop,)) == [whole[: whole.index(stop)]]
    assert asking.events["r"][-2] == ChoiceDone("stop")


def test_each_choice_is_what_it_would_be_alone_and_they_differ(engine: Engine, asking: Asking, ids: list[int]) -> None:
    three = asking.ask(ids, 3, sampling=WARM)
    assert len(set(three)) == 3
    ends = [event for event in asking.events["r"] if isinstance(event, ChoiceDone)]
    assert sorted(ends, key=lambda end: end.choice) == [ChoiceDone("length", number) for number in range(3)]
    usage = asking.end.usage
    assert (usage.prompt_tokens, usage.completion_tokens) == (len(ids), 3 * TOKENS)
    if engine.exact:
        assert asking.ask(ids, 2, sampling=WARM) == three[:2]


def test_the_best_of_several_are_the_likeliest_in_order(engine: Engine, asking: Asking, ids: list[int]) -> None:
    if not engine.exact:
        pytest.skip("its kernels round differently for different numbers of rows")
    every = asking.ask(ids, 4, sampling=WARM, logprobs=0)
    means = []
    for number, one in enumerate(every):
        said = [event for event in asking.events["r"] if isinstance(event, TextDelta) and event.choice == number]
        infos = [info for event in said for info in event.tokens]
        means.append((sum(info.logprob for info in infos) / len(infos), one))
    assert asking.ask(ids, 2, best_of=4, sampling=WARM) == [one for _, one in sorted(means, reverse=True)[:2]]
    assert asking.end.usage.completion_tokens == 4 * TOKENS, "all were computed"
    assert not any(event.tokens for event in asking.events["r"] if isinstance(event, TextDelta)), "nobody asked"


def test_log_probabilities_come_with_the_text_one_for_each_token(asking: Asking, ids: list[int]) -> None:
    (text,) = asking.ask(ids, logprobs=3)
    infos = [info for event in asking.events["r"] if isinstance(event, TextDelta) for info in event.tokens]
    assert len(infos) == TOKENS
    assert b"".join(info.raw for info in infos).decode(errors="replace").startswith(text[:-1])
    assert all(len(info.top) == 3 and info.logprob < 0 for info in infos)


def test_a_cancelled_request_takes_all_its_choices_along(asking: Asking, ids: list[int]) -> None:
    asking.add(ids, n=4)
    for _ in range(3):
        asking.core.step()
    asking.core.cancel("r")
    while not asking.core.idle:
        assert asking.core.step() == [], "what was in flight is collected, and nobody hears of it"
    assert asking.core.step() == []
    asking.ask(ids)
    assert asking.end.usage.cached_tokens > 0, "what was computed may serve the next"


def test_a_context_slides_where_the_request_allows_it_and_the_answer_says_so(
    engine: Engine, asking: Asking, ids: list[int]
) -> None:
    given = EncodedPrompt((ids * 6)[:240], keep=20)
    (whole,) = asking.ask(given, sliding=True, max_tokens=30)
    assert [event.dropped for event in asking.events["r"] if isinstance(event, Slid)] == [118]
    assert asking.end.usage.completion_tokens == 30
    if not engine.exact or engine.name.startswith("llamacpp"):
        return  # without `exact` the chunks that a prompt is computed in decide how it is rounded
    (full,) = asking.ask(given, max_tokens=200)
    assert asking.end.usage.completion_tokens == 16, "without leave the context is the end"
    assert whole.startswith(full.rstrip("\ufffd"))
    assert whole != full
