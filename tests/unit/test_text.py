"""ReplyText against a reference that looks at the whole answer, over random bytes, splits and stop strings."""

from __future__ import annotations

import itertools

import pytest
from at_best import least_cpu_s
from hypothesis import given, settings
from hypothesis import strategies as st

from edgellm.engine.text import ReplyText, StopFinder
from edgellm.errors import InvalidRequest


class Pieces:
    """A tokenizer whose token i stands for the i-th piece of bytes."""

    def __init__(self, pieces: list[bytes]) -> None:
        self.pieces = pieces

    def token_bytes(self, token: int) -> bytes:
        return self.pieces[token]


def assemble(pieces: list[bytes], stop: tuple[str, ...] = ()) -> tuple[list[str], bool]:
    """The texts of all pushes and of the end, and whether a stop string was found."""
    text = ReplyText(Pieces(pieces), stop)  # type: ignore[arg-type]
    out = [text.push(token) for token in range(len(pieces))]
    return [*(piece.text for piece in out), text.finish().text], bool(out) and out[-1].stopped


def answer(data: bytes, stop: tuple[str, ...]) -> tuple[str, bool]:
    """The same, looking at everything at every character."""
    text = data.decode("utf-8", "replace")
    for end in range(1, len(text) + 1):
        lengths = [len(s) for s in stop if text[:end].endswith(s)]
        if lengths:
            return text[: end - max(lengths)], True
    return text, False


def unfinished(data: bytes) -> int:
    """How many of the last bytes may still become a character (Python waits out an encoded surrogate, too)."""
    if len(data) > 1 and data[-2] == 0xED and 0xA0 <= data[-1] <= 0xBF:
        return 2
    for count in (3, 2, 1):
        tail = data[-count:]
        for more in range(1, 4):
            for end in itertools.product((0x80, 0x90, 0xA0, 0x8F, 0xBF), repeat=more):
                try:
                    if len(tail) == count and len((tail + bytes(end)).decode()) == 1:
                        return count
                except UnicodeDecodeError:
                    pass
    return 0


BYTES = st.one_of(
    st.binary(max_size=40),
    st.text("ab€é😀\ud7ff\U0010ffff", max_size=20).map(str.encode),
    st.lists(st.sampled_from([b"\xf0", b"\x9f", b"\x98", b"\x80", b"\xe2", b"\xed", b"\xa0", b"a", b"\xc3"])).map(
        b"".join
    ),
)
STOPS = st.lists(st.text("ab€😀\ufffd", min_size=1, max_size=5), max_size=4).map(tuple)


@st.composite
def split(draw: st.DrawFn) -> list[bytes]:
    data = draw(BYTES)
    cuts = sorted(draw(st.lists(st.integers(0, len(data)), max_size=12)))
    return [data[start:end] for start, end in itertools.pairwise([0, *cuts, len(data)])]


@given(split(), STOPS)
@settings(max_examples=400)
def test_pieces_make_the_whole_answer_whatever_the_splits(pieces: list[bytes], stop: tuple[str, ...]) -> None:
    texts, _ = assemble(pieces, stop)
    assert "".join(texts) == answer(b"".join(pieces), stop)[0]


@given(
    st.text("ab", max_size=30),
    st.lists(st.text("ab", min_size=1, max_size=6), min_size=1, max_size=4).map(tuple),
)
@settings(max_examples=300)
def test_stop_strings_that_overlap(text: str, stop: tuple[str, ...]) -> None:
    for pieces in ([text.encode()], [character.encode() for character in text]):
        texts, stopped = assemble(pieces, stop)
        assert ("".join(texts), stopped) == answer(text.encode(), stop)


@given(split(), STOPS)
@settings(max_examples=200)
def test_no_more_is_held_back_than_may_still_matter(pieces: list[bytes], stop: tuple[str, ...]) -> None:
    texts, _ = assemble(pieces, stop)
    for count in range(1, len(pieces) + 1):
        data = b"".join(pieces[:count])
        certain = data[: len(data) - unfinished(data)]
        text, stopped = answer(certain, stop)
        held = max((n for s in stop for n in range(len(s)) if not stopped and n and text.endswith(s[:n])), default=0)
        assert "".join(texts[:count]) == text[: len(text) - held]


def test_characters_are_never_emitted_in_part() -> None:
    family = "👨‍👩‍👧"
    texts, _ = assemble([bytes([byte]) for byte in family.encode()])
    assert [text for text in texts if text] == list(family)


def test_bytes_that_never_become_a_character_are_replaced_at_once_or_at_the_end() -> None:
    assert assemble([b"a\xf0\x9f", b"b"])[0] == ["a", "�b", ""]
    assert assemble([b"a\xf0\x9f\x98"])[0] == ["a", "�"]


def test_stop_string_within_one_token_and_over_three() -> None:
    assert assemble([b"one\n\ntwo"], ("\n\n",)) == (["one", ""], True)
    assert assemble([b"one <", b"|end", b"|> two"], ("<|end|>",)) == (["one ", "", "", ""], True)


def test_a_false_start_is_let_go() -> None:
    assert assemble([b"a<", b"|b"], ("<|end|>",))[0] == ["a", "<|b", ""]
    assert assemble([b"a<", b"|"], ("<|end|>",))[0] == ["a", "", "<|"]


def test_the_stop_string_that_is_complete_first_wins() -> None:
    for pieces in ([b"abcd"], [b"a", b"b", b"c", b"d"]):
        assert "".join(assemble(pieces, ("abcd", "bc"))[0]) == "a"
        assert "".join(assemble(pieces, ("abc", "bc", "c"))[0]) == ""


def test_nothing_comes_after_a_stop() -> None:
    text = ReplyText(Pieces([b"a", b"."]), (".",))  # type: ignore[arg-type]
    assert [text.push(0).text, text.push(1).stopped] == ["a", True]
    assert text.push(0) == text.push(1)
    assert (text.push(0).text, text.push(0).stopped, text.finish().text) == ("", True, "")


def test_a_stop_string_completed_by_the_flush() -> None:
    assert "".join(assemble([b"ab\xf0"], ("b\ufffd",))[0]) == "a"


def test_control_tokens_add_nothing() -> None:
    assert assemble([b"", b"a", b""])[0] == ["", "a", "", ""]


def test_finish_flushes_once() -> None:
    text = ReplyText(Pieces([b"<"]), ("<>",))  # type: ignore[arg-type]
    text.push(0)
    assert (text.finish().text, text.finish().text) == ("<", "")


def test_an_empty_stop_string_is_refused() -> None:
    with pytest.raises(InvalidRequest) as caught:
        StopFinder(["a", ""])
    assert caught.value.param == "stop"


def test_long_stop_strings_cost_no_rescans() -> None:
    """100,000 characters that keep a 1,000-character stop string almost complete; a rescan would take 10**8 steps."""
    stop = ("a" * 999 + "b", "c" * 1000)
    pieces = [b"aaaa"] * 25_000
    assert least_cpu_s(lambda: assemble(pieces, stop), enough=2) < 2
    texts, stopped = assemble(pieces, stop)
    assert (len("".join(texts)), stopped) == (100_000, False)
    assert len(texts[-1]) == 999
