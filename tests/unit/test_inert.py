"""No text acts on a terminal."""

from __future__ import annotations

from edgellm.inert import inert, label


def test_inert_text() -> None:
    hostile = "a\x1b[31m\x07\x9b2J\r\x7f\u202eb\n\tc"
    assert inert(hostile) == "a␛[31m␇\ufffd2J␡\ufffdb\n\tc"
    assert inert("naïve 日本語 שלום 🙂") == "naïve 日本語 שלום 🙂"
    assert label("a\nb\t\x1bc", 5) == "a b ␛c"[:4] + "…"
