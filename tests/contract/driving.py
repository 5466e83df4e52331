"""Short words for driving a runner in tests."""

from __future__ import annotations

from collections.abc import Sequence

from edgellm.contracts.engine import Tokenizer
from edgellm.contracts.runner import Result, Row, SampleSpec, TokenRunner

GREEDY = SampleSpec(temperature=0.0, top_k=0, top_p=1.0, seed=0)
WARM = SampleSpec(temperature=1.0, top_k=40, top_p=0.95, seed=1234)

STORY = (
    "Once upon a time there was a small lighthouse on a rocky island. Every evening the keeper climbed the stairs, "
    "lit the lamp and wrote one line about the weather into a thick blue book. One evening the book was gone."
)


def prompt(tokenizer: Tokenizer, text: str = STORY) -> list[int]:
    """Ids of `text`, with BOS where the model expects it."""
    ids = tokenizer.encode(text, special=False)
    return [tokenizer.bos, *ids] if tokenizer.adds_bos and tokenizer.bos is not None else ids


def step(runner: TokenRunner, *rows: Row) -> list[Result]:
    return runner.collect(runner.submit(rows))


def token(result: Result) -> int:
    assert result.error is None
    (drawn,) = result.tokens
    return drawn


def append(runner: TokenRunner, sequence: int, start: int, ids: Sequence[int], chunk: int = 64) -> None:
    """Append without drawing anything."""
    for first in range(0, len(ids), chunk):
        part = ids[first : first + chunk]
        (result,) = step(runner, Row(sequence, start + first, part))
        assert result == Result()


def fill(runner: TokenRunner, sequence: int, ids: Sequence[int]) -> int:
    """Append until nothing more has room; how many tokens had. An engine may hold more than its capacity promises."""
    held = 0
    for chunk in (16, 1):
        while step(runner, Row(sequence, held, ids[held : held + chunk]))[0].error is None:
            held += chunk
    return held


def answer(
    runner: TokenRunner,
    sequence: int,
    ids: Sequence[int],
    count: int,
    spec: SampleSpec = GREEDY,
    chunk: int = 64,
    held: int = 0,
) -> list[int]:
    """`count` tokens that follow `ids`, of which the sequence already holds the first `held`."""
    append(runner, sequence, held, ids[held:-1], chunk)
    start, last = len(ids) - 1, ids[-1]
    drawn: list[int] = []
    for position in range(count):
        last = token(step(runner, Row(sequence, start + position, [last], spec, position))[0])
        drawn.append(last)
    return drawn
