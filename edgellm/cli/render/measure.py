"""Columns, as the terminal in use counts them: about emoji of several parts they disagree, and wcwidth knows how.

Every text here may hold the escape sequences of `paint`, which take no room.
"""

from __future__ import annotations

import wcwidth


def columns(text: str) -> int:
    """The room that a text takes on one line."""
    return max(0, int(wcwidth.width(text, term_program=True)))


def wrapped(text: str, width: int, *, indent: str = "") -> list[str]:
    """Lines broken at spaces, and anywhere between wide characters; its own line breaks stay.

    `indent` stands before what follows the first line of each part. Looks go on from line to line.
    """
    lines: list[str] = []
    for part in text.split("\n"):
        broken = wcwidth.wrap(part, width, subsequent_indent=indent, break_on_hyphens=False, term_program=True)
        lines += broken or [""]
    return lines


def rows(line: str, width: int) -> int:
    """Rows of the screen that a line takes. The terminal breaks long ones, wide characters whole."""
    line = line.expandtabs()
    if (len(line) <= width and line.isascii()) or columns(line) <= width:
        return 1
    count, column = 1, 0
    for part in wcwidth.iter_graphemes(wcwidth.strip_sequences(line)):
        wide = columns(part)
        if column + wide > width:
            count, column = count + 1, 0
        column += wide
    return count
