"""The torch engine in a real worker process, with one step in flight and with two: the same text to the byte."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import NamedTuple

import pytest
from shortened import shortened

from edgellm.contracts.engine import Placement
from edgellm.contracts.events import ChoiceDone, Event, Finished, TextDelta
from edgellm.contracts.request import GenerateRequest, Sampling, Text
from edgellm.engine.limits import Limits
from edgellm.engine.protocol import Load
from edgellm.engine.supervisor import LocalModel

WORKER = Path(__file__).parent.parent / "torch_worker.py"
ROOM = Placement(context=256, capacity=1024, max_sequences=8, batch_tokens=128, threads=1, threads_batch=1)
STORY = "Once upon a time there was a small lighthouse on a rocky island, and every evening the keeper "


class Ask(NamedTuple):
    """`leave`: events after which the client goes away."""

    prompt: str
    sampling: Sampling
    stop: tuple[str, ...] = ()
    choices: int = 1
    leave: int = 0


WARM = Sampling(temperature=0.9, seed=4)
ASKS = [
    Ask(STORY, Sampling(temperature=0.0)),
    Ask(STORY, WARM),
    Ask("The sea was calm", WARM, stop=(" the", "."), choices=2),
    Ask("Go away", WARM, leave=4),
    Ask(STORY + "wrote one line", Sampling(temperature=1.2, top_k=0, seed=8), stop=("e",)),
    Ask("A list of words:", Sampling(temperature=0.8, seed=3, repeat_penalty=1.2)),
    Ask("Go away at once", WARM, leave=1),
    Ask("Who was it?", Sampling(temperature=0.7, min_p=0.05, seed=6)),
]


def request(number: int, ask: Ask) -> GenerateRequest:
    return GenerateRequest(
        id=str(number),
        model="m",
        prompt=Text(ask.prompt),
        sampling=ask.sampling,
        max_tokens=24,
        stop=ask.stop,
        n=ask.choices,
        logprobs=1 if number == 1 else None,
    )


async def answer(model: LocalModel, number: int, ask: Ask) -> list[Event]:
    await asyncio.sleep(0.02 * number)
    events: list[Event] = []
    stream = model.generate(request(number, ask))
    async for event in stream:
        events.append(event)
        if ask.leave and len(events) >= ask.leave:
            break
    await stream.aclose()
    return events


def said(events: list[Event]) -> tuple[object, ...]:
    """What must be the same: texts, ends, tokens with their log probabilities."""
    assert isinstance(events[-1], Finished)
    deltas = [event for event in events if isinstance(event, TextDelta)]
    texts = ["".join(delta.text for delta in deltas if delta.choice == choice) for choice in range(2)]
    infos = [info for delta in deltas for info in delta.tokens]
    ends = sorted((event.choice, event.reason) for event in events if isinstance(event, ChoiceDone))
    return texts, infos, ends, events[-1].usage.completion_tokens


async def answers(path: Path, depth: int) -> list[list[Event]]:
    load = Load("torch", str(path), ROOM, "m", Limits(parked_bytes=1 << 20))
    model = LocalModel(load, argv=[sys.executable, "-P", str(WORKER), str(depth)])
    try:
        await model.preload()
        found = await asyncio.gather(*(answer(model, number, ask) for number, ask in enumerate(ASKS)))
        again = await answer(model, 1, ASKS[1])
        return [*found, again]
    finally:
        await model.stop(0.0)


@pytest.mark.slow
def test_two_steps_in_flight_say_the_same_as_one(smollm2: Path, tmp_path: Path) -> None:
    path = shortened(smollm2, 2, tmp_path)
    one, two = (asyncio.run(answers(path, depth)) for depth in (1, 2))
    for number, ask in enumerate([*ASKS, ASKS[1]]):
        if not ask.leave:
            assert said(one[number]) == said(two[number]), ask
    ahead = {depth: len(Path(f"{path}.ahead-{depth}").read_text()) for depth in (1, 2)}
    assert ahead[1] == 0
    assert ahead[2] > 20
