"""Normal forms are Unicode's, and cost what they should."""

from __future__ import annotations

import sys
import unicodedata
from functools import partial

from at_best import least_cpu_s
from hypothesis import given
from hypothesis import strategies as st

from edgellm.formats.normal_forms import LONGEST, composed, decomposed, is_mark

# Marks of several classes, marks that become several, letters that join with them, and what only looks like a mark.
LETTERS = (
    "ae\u0301\u0323\u0327\u0344\u0f71\u0f73\u0f75\u0f81\u093c\u09be\u0345\u03b1\u1fbe"
    "\u3099\u302a\uac00\u11a8\u200d\ufe0f"
)


@given(st.lists(st.tuples(st.sampled_from(LETTERS) | st.characters(), st.integers(1, 3 * LONGEST))))
def test_they_are_unicodes(parts: list[tuple[str, int]]) -> None:
    text = "".join(letter * times for letter, times in parts)
    assert composed(text) == unicodedata.normalize("NFC", text)
    assert decomposed(text) == unicodedata.normalize("NFD", text)


@given(st.text(st.sampled_from(LETTERS), min_size=40, max_size=400))
def test_they_are_unicodes_where_marks_are_mixed(text: str) -> None:
    assert composed(text) == unicodedata.normalize("NFC", text)
    assert decomposed(text) == unicodedata.normalize("NFD", text)


def test_marks_become_nothing_but_marks_and_are_where_they_are_looked_for() -> None:
    marks = [chr(code) for code in range(sys.maxunicode + 1) if is_mark(chr(code))]
    assert all(unicodedata.combining(part) for mark in marks for part in unicodedata.normalize("NFD", mark))
    assert min(marks) >= "\u0300"
    assert max(marks) < "\U00020000"


def test_many_marks_take_no_time_by_their_square() -> None:
    for marks in ("\u0301\u0323", "\u0f73", "\u0301" * 40 + "\u0323" * 40):
        text = "e" + marks * (200_000 // len(marks))
        assert least_cpu_s(partial(composed, text), enough=5) < 5  # by their square: 50 s
