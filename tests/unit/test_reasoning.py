"""Thoughts and answer apart, however the tokens cut the tags: against a reference that looks at the whole reply."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from edgellm.engine.reasoning import TAGS, Channels, ReasoningFormat, Tags, reasoning_format
from edgellm.engine.text import ReplyText

THINK = Tags("<think>", "</think>")
SPACE = " \t\r\n"
START, CHANNEL, MESSAGE, END, OPEN, CLOSE = range(1000, 1006)
HARMONY = Channels(START, CHANNEL, MESSAGE, END)
CHANNEL_TAGS = Tags("<|channel>", "<channel|>", label="thought\n")
Part = bytes | str | int
BY_ID = Tags("[THINK]", "[/THINK]", OPEN, CLOSE)


class Pieces:
    """A tokenizer whose token i stands for the i-th piece; control tokens, from 1000 on, for nothing."""

    def __init__(self, pieces: Sequence[bytes]) -> None:
        self.pieces = pieces

    def token_bytes(self, token: int) -> bytes:
        return b"" if token >= START else self.pieces[token]


def parted(
    reply: Sequence[Part],
    form: ReasoningFormat | None = THINK,
    *,
    inside: bool = False,
    continued: bool = False,
    stop: tuple[str, ...] = (),
) -> tuple[str, str]:
    """Thoughts and answer of a reply in pieces of text and control tokens, as a stream that is put together again."""
    pieces = [part.encode() if isinstance(part, str) else part for part in reply]
    tokenizer = Pieces([part if isinstance(part, bytes) else b"" for part in pieces])
    text = ReplyText(tokenizer, stop, form, inside, continued=continued)  # type: ignore[arg-type]
    out = [text.push(part if isinstance(part, int) else index) for index, part in enumerate(pieces)]
    out.append(text.finish())
    return "".join(piece.reasoning for piece in out), "".join(piece.text for piece in out)


def cut(text: str, stop: tuple[str, ...]) -> str:
    for end in range(1, len(text) + 1):
        lengths = [len(s) for s in stop if text[:end].endswith(s)]
        if lengths:
            return text[: end - max(lengths)]
    return text


def reference(text: str, tags: Tags, inside: bool, stop: tuple[str, ...]) -> tuple[str, str]:
    rest = text.lstrip(SPACE)
    if not inside and not rest.startswith(tags.opening):
        return "", cut(text, stop)
    thoughts, _, answer = rest.removeprefix(tags.opening).partition(tags.closing)
    return thoughts.strip(SPACE), cut(answer.lstrip(SPACE), stop)


PARTS = st.sampled_from(
    ["<think>", "</think>", "<", "</", "think", ">", "\n", "\n\n", " ", "a", "b", "é", "😀", "<thinking>", "</thin"]
)
STOPS = st.lists(st.sampled_from(["a", "\n\n", "</think>", "b<", "<think>", "é", "></"]), max_size=3).map(tuple)


@given(st.lists(PARTS, max_size=14).map("".join), st.booleans(), STOPS, st.data())
@settings(max_examples=600)
def test_the_stream_put_together_is_the_whole_reply_parted(
    text: str, inside: bool, stop: tuple[str, ...], data: st.DataObject
) -> None:
    raw = text.encode()
    cuts = sorted(data.draw(st.lists(st.integers(0, len(raw)), max_size=14)))
    pieces = [raw[start:end] for start, end in itertools.pairwise([0, *cuts, len(raw)])]
    assert parted(pieces, inside=inside, stop=stop) == reference(text, THINK, inside, stop)


def test_a_reply_that_thinks_first() -> None:
    assert parted(["<th", "ink>\n", "Let me", " see.\n", "</", "think>", "\n\n", "Four."]) == ("Let me see.", "Four.")


def test_thoughts_that_the_prompt_has_opened() -> None:
    assert parted(["Let me see.\n</think>\n\nFour."], inside=True) == ("Let me see.", "Four.")
    assert parted(["<think>\nLet me see.\n</think>\n\nFour."], inside=True) == ("Let me see.", "Four.")


def test_thoughts_that_never_end_are_thoughts() -> None:
    assert parted(["<think>", "hm", "\n</th"]) == ("hm\n</th", "")
    assert parted(["hm </"], inside=True) == ("hm </", "")


def test_a_tag_that_is_not_at_the_beginning_is_text() -> None:
    assert parted(["The tag <think> opens, </think> ends."]) == ("", "The tag <think> opens, </think> ends.")
    assert parted(["<think>a</think>b<think>c</think>"]) == ("a", "b<think>c</think>")
    assert parted(["  \n<thin", "g>"]) == ("", "  \n<thing>")


def test_a_model_that_does_not_think_is_left_alone() -> None:
    assert parted(["<think>a</think>\n\nb"], None) == ("", "<think>a</think>\n\nb")


def test_no_thoughts_between_the_tags() -> None:
    assert parted(["<think>\n\n</think>\n\nFour."]) == ("", "Four.")


def test_thoughts_are_not_held_back_for_longer_than_their_end_could_be_a_tag() -> None:
    text = ReplyText(Pieces([b"<think>a <", b"b", b" </", b"think", b">c"]), (), THINK)  # type: ignore[arg-type]
    out = [text.push(token) for token in range(5)]
    assert [piece.reasoning for piece in out] == ["a", " <b", "", "", ""]
    assert [piece.text for piece in out] == ["", "", "", "", "c"]


def test_stop_strings_are_for_the_answer() -> None:
    assert parted(["<think>a\n\nb</think>\n\nc", "\n", "\nd"], stop=("\n\n",)) == ("a\n\nb", "c")


def test_a_continued_thought_keeps_its_first_space() -> None:
    assert parted([" see.</think>ok"], inside=True, continued=True) == (" see.", "ok")


def test_tags_that_are_control_tokens_are_known_by_id_alone() -> None:
    assert parted([OPEN, "a [/THINK] b\n", CLOSE, "\nc"], BY_ID) == ("a [/THINK] b", "c")
    assert parted(["\n", OPEN, "a", CLOSE, "b", OPEN, "c", CLOSE], BY_ID) == ("a", "bc")
    assert parted(["[THINK]a[/THINK]"], BY_ID) == ("", "[THINK]a[/THINK]")
    assert parted(["a", CLOSE, "b"], BY_ID) == ("", "ab")
    assert parted([CLOSE, "b"], BY_ID, inside=True) == ("", "b")


def test_half_a_character_before_a_control_token_is_replaced() -> None:
    assert parted([OPEN, b"a\xf0\x9f", CLOSE, b"\x98\x80b"], BY_ID) == ("a\ufffd", "\ufffd\ufffdb")


def test_harmony() -> None:
    reply: list[Part] = [CHANNEL, "ana", "lysis", MESSAGE, "2+2", " is 4", END]
    reply += [START, "assistant", CHANNEL, "final", MESSAGE, "Four."]
    assert parted(reply, HARMONY) == ("2+2 is 4", "Four.")
    assert parted(reply, HARMONY, stop=("2", "r.")) == ("2+2 is 4", "Fou")
    assert parted(reply[:6], HARMONY) == ("2+2 is 4", "")
    assert parted(reply[:9], HARMONY) == ("2+2 is 4", "")


def test_harmony_with_more_than_one_message_of_a_kind() -> None:
    first: list[Part] = [
        CHANNEL,
        "analysis",
        MESSAGE,
        "a",
        END,
        START,
        "assistant",
        CHANNEL,
        "commentary",
        MESSAGE,
        "b",
        END,
    ]
    more: list[Part] = [START, "assistant", CHANNEL, "analysis", MESSAGE, "c", END, CHANNEL, "final", MESSAGE, "d"]
    assert parted(first + more, HARMONY) == ("a\n\nc", "b\n\nd")


def test_harmony_that_is_none_loses_nothing() -> None:
    assert parted(["Just", " text"], HARMONY) == ("", "Just text")
    assert parted(["x" * 300, "y"], HARMONY) == ("", "x" * 300 + "y")
    assert parted(["Text", END, START, "assistant", CHANNEL, "final", MESSAGE, "b"], HARMONY) == ("", "Text\n\nb")


class Vocabulary:
    """Knows some texts as control tokens, all else as letters."""

    def __init__(self, *control: str) -> None:
        self.control = control

    def encode(self, text: str, *, special: bool) -> list[int]:
        return [self.control.index(text)] if special and text in self.control else [100 + ord(c) for c in text]

    def token_bytes(self, token: int) -> bytes:
        return b"" if token < 100 else chr(token - 100).encode()


@pytest.mark.parametrize("tags", TAGS)
def test_the_template_says_which_format_and_the_vocabulary_how_it_is_known(tags: Tags) -> None:
    template = "{{ content.split('" + tags.closing + "')[-1] }}"
    assert reasoning_format(template, Vocabulary()) == tags  # type: ignore[arg-type]
    known = reasoning_format(template, Vocabulary(tags.opening, tags.closing))  # type: ignore[arg-type]
    assert known == replace(tags, opening_id=0, closing_id=1)


@pytest.mark.parametrize("form", [CHANNEL_TAGS, replace(CHANNEL_TAGS, opening_id=OPEN, closing_id=CLOSE)])
def test_a_label_between_tag_and_thoughts_is_not_shown(form: Tags) -> None:
    first, last = (OPEN, CLOSE) if form.opening_id else (form.opening, form.closing)
    assert parted([first, "tho", "ught", "\nhm", last, "Four."], form) == ("hm", "Four.")
    assert parted([first, "thought\n", last, "Four."], form) == ("", "Four.")
    assert parted([first, "thou", "sands\n", last, "Four."], form) == ("thousands", "Four.")
    assert parted([first, "thou"], form) == ("thou", "")
    assert parted(["Four."], form) == ("", "Four.")


def test_channels_need_their_control_tokens() -> None:
    template = "<|start|>assistant<|channel|>final<|message|>"
    known = Vocabulary("<|start|>", "<|channel|>", "<|message|>", "<|end|>")
    assert reasoning_format(template, known) == Channels(0, 1, 2, 3)  # type: ignore[arg-type]
    assert reasoning_format(template, Vocabulary("<|start|>")) is None  # type: ignore[arg-type]
    assert reasoning_format("<|im_start|>", known) is None  # type: ignore[arg-type]
