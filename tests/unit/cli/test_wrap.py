"""Answers broken at spaces while they stream; judged on a screen of its own."""

from __future__ import annotations

import re

import pytest

from edgellm.cli.wrap import Wrap


def screen(written: str) -> list[str]:
    """What a very wide terminal shows: only line feeds, steps back and erasing act."""
    lines, column = [""], 0
    for part in re.findall(r"\x1b\[K|[\s\S]", written):
        if part == "\n":
            lines.append("")
            column = 0
        elif part == "\b":
            column -= 1
        elif part == "\x1b[K":
            lines[-1] = lines[-1][:column]
        else:
            lines[-1] = lines[-1][:column] + part
            column += 1
    return lines


def shown(text: str, width: int, size: int) -> list[str]:
    wrap = Wrap()
    return screen("".join(wrap.feed(text[i : i + size], width) for i in range(0, len(text), size)))


@pytest.mark.parametrize("size", [1, 3, 1000])
def test_words_stay_whole_however_the_text_arrives(size: int) -> None:
    text = "The quick brown fox\njumps over the very lazy dog, déjà vu."
    lines = shown(text, 12, size)
    assert [line.rstrip() for line in lines] == [
        "The quick",
        "brown fox",
        "jumps over",
        "the very",
        "lazy dog,",
        "déjà vu.",
    ]


@pytest.mark.parametrize(
    "text",
    [
        "a_word_that_is_longer_than_the_line",
        "    code that is indented stays",
        "```\nlong line of code stays whole\n```",
        "日本語 and some more words here",
        "tab\tand some more words here",
    ],
)
def test_what_cannot_be_broken_safely_is_left_to_the_terminal(text: str) -> None:
    wrap = Wrap()
    assert wrap.feed(text, 12) == text


def test_text_after_code_is_wrapped_again() -> None:
    assert [line.rstrip() for line in shown("```\nx = 1\n```\nwords and words", 12, 4)][-2:] == ["words and", "words"]


def test_a_space_at_the_edge_is_the_break() -> None:
    assert shown("abcdef ghi", 7, 1) == ["abcdef", "ghi"]
