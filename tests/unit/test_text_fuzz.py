"""Streams put together against the whole reply, seen at once: random text in every script, cut anywhere, stop strings
of 1 to 40 characters, thoughts between tags and on channels.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence

from hypothesis import given, settings
from hypothesis import strategies as st

from edgellm.engine.reasoning import TAGS, Channels, ReasoningFormat, Tags
from edgellm.engine.text import ReplyText

CASES = 10_000
SPACE = " \t\r\n"
SIGNS = (
    *("a", "b", "the ", "\n", "\n\n", "\r\n", " ", "\t", "\0", "é", "e\u0301", "ß", "ﷺ", "\u200b", "\ufffd", "\ufeff"),
    *("漢", "字", "かな", "한국", "ไทย", "नि", "עב", "👍🏽", "👨‍👩‍👧", "🇩🇪", "🏳️‍🌈", "\U0010ffff", "𝔘"),
    *(
        "<",
        "</",
        ">",
        "<|",
        "|>",
        "think",
        "<think>",
        "</think>",
        "[THINK]",
        "[/THINK]",
        "```",
        "thought",
        "thought\n",
        "</s>",
        "::",
    ),
)
START, CHANNEL, MESSAGE, END = range(-4, 0)
CHANNELS = Channels(START, CHANNEL, MESSAGE, END)


class Pieces:
    """A tokenizer whose token i stands for the i-th piece; control tokens, below 0, for nothing."""

    def __init__(self, pieces: Sequence[bytes | int]) -> None:
        self.pieces = pieces

    def token_bytes(self, token: int) -> bytes:
        piece = self.pieces[token] if token >= 0 else b""
        assert isinstance(piece, bytes)
        return piece


def streamed(
    pieces: Sequence[bytes | int], stop: tuple[str, ...], form: ReasoningFormat | None = None, inside: bool = False
) -> tuple[str, str]:
    """Thoughts and answer as they come, put together. Each piece must be whole characters."""
    reply = ReplyText(Pieces(pieces), stop, form, inside)  # type: ignore[arg-type]
    out = [reply.push(piece if isinstance(piece, int) else at) for at, piece in enumerate(pieces)]
    out.append(reply.finish())
    return "".join(piece.reasoning for piece in out), "".join(piece.text for piece in out)


def cut(text: str, stop: tuple[str, ...]) -> str:
    """Before the stop string that is complete first; of several, the longest."""
    ends = [at + len(s) for s in stop if (at := text.find(s)) >= 0]
    end = min(ends, default=None)
    return text if end is None else text[: end - max(len(s) for s in stop if text.endswith(s, 0, end))]


def parted(text: str, tags: Tags, inside: bool, stop: tuple[str, ...]) -> tuple[str, str]:
    rest = text.lstrip(SPACE)
    if not inside and not rest.startswith(tags.opening):
        return "", cut(text, stop)
    if rest.startswith(tags.opening):
        rest = rest.removeprefix(tags.opening).lstrip(SPACE).removeprefix(tags.label)
    thoughts, _, answer = rest.partition(tags.closing)
    return thoughts.strip(SPACE), cut(answer.lstrip(SPACE), stop)


def some_text(chance: random.Random, most: int = 24) -> str:
    return "".join(chance.choices(SIGNS, k=chance.randrange(most)))


def some_stops(chance: random.Random, text: str) -> tuple[str, ...]:
    """Up to four, of 1 to 40 characters; most stand in the text, or begin like a part of it."""
    stops = []
    for _ in range(chance.randrange(5)):
        length = chance.randint(1, 40)
        start = chance.randrange(len(text) + 1)
        found = text[start : start + length]
        other = some_text(chance, 12)[: length - len(found) // 2]
        stops.append(chance.choice((found, found, found[: len(found) // 2] + other, other)) or "x")
    return tuple(stops)


def in_pieces(chance: random.Random, raw: bytes) -> list[bytes]:
    count = len(raw) if chance.random() < 0.05 else chance.randrange(1 + min(len(raw), 12))
    cuts = sorted(chance.choices(range(len(raw) + 1), k=count))
    return [raw[start:end] for start, end in itertools.pairwise([0, *cuts, len(raw)])]


def test_ten_thousand_replies_with_stop_strings() -> None:
    chance = random.Random(20_001)
    stopped = 0
    for _ in range(CASES):
        text = some_text(chance)
        stop = some_stops(chance, text)
        expected = cut(text, stop)
        stopped += expected != text
        assert streamed(in_pieces(chance, text.encode()), stop) == ("", expected), (text, stop)
    assert stopped > CASES / 4, "or the cases are no test"


def test_ten_thousand_replies_with_thoughts_between_tags() -> None:
    chance = random.Random(20_002)
    thought = 0
    for _ in range(CASES):
        tags = chance.choice(TAGS)
        inside = chance.random() < 0.3
        parts = [some_text(chance, 4), tags.opening, some_text(chance), tags.closing, some_text(chance)]
        text = "".join(part for part in parts if chance.random() < 0.8)
        stop = some_stops(chance, text)
        expected = parted(text, tags, inside, stop)
        thought += bool(expected[0])
        got = streamed(in_pieces(chance, text.encode()), stop, tags, inside)
        assert got == expected, (text, tags, inside, stop)
    assert thought > CASES / 4


def test_two_thousand_replies_on_channels() -> None:
    chance = random.Random(20_003)
    for _ in range(2000):
        names = chance.choices(("analysis", "commentary", "final"), k=chance.randint(1, 4))
        messages = [(name, some_text(chance, 12)) for name in names]
        stop = some_stops(chance, joined([text for name, text in messages if name != "analysis"]))
        reply: list[bytes | int] = []
        for name, text in messages:
            reply += [START, *in_pieces(chance, b"assistant"), CHANNEL, *in_pieces(chance, name.encode()), MESSAGE]
            reply += [*in_pieces(chance, text.encode()), END]
        assert streamed(reply[reply.index(CHANNEL) :], stop, CHANNELS) == by_channel(messages, stop), (reply, stop)


def by_channel(messages: list[tuple[str, str]], stop: tuple[str, ...]) -> tuple[str, str]:
    """Up to the message in which a stop string is complete."""
    thoughts: list[str] = []
    answers: list[str] = []
    for name, text in messages:
        (thoughts if name == "analysis" else answers).append(text)
        if cut(joined(answers), stop) != joined(answers):
            break
    return joined(thoughts), cut(joined(answers), stop)


def joined(texts: list[str]) -> str:
    """Messages of one kind, set off by a blank line; an empty one adds none."""
    return "".join("\n\n" * bool(at) + text for at, text in enumerate(texts) if text)


@given(st.text(max_size=60), st.data())
@settings(max_examples=60)
def test_any_unicode_at_all(text: str, data: st.DataObject) -> None:
    raw = text.encode()
    bounds = st.integers(0, len(text))
    slices = st.tuples(bounds, bounds).map(lambda ends: text[min(ends) : max(ends)][:40] or "x")
    stop = tuple(data.draw(st.lists(st.one_of(slices, st.text(min_size=1, max_size=40)), max_size=4)))
    cuts = sorted(data.draw(st.lists(st.integers(0, len(raw)), max_size=12)))
    pieces = [raw[start:end] for start, end in itertools.pairwise([0, *cuts, len(raw)])]
    assert streamed(pieces, stop) == ("", cut(text, stop))
