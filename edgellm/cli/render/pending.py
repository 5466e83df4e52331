"""The end of an answer that is still growing, made presentable.

A line that has only begun may be a heading, a rule, a row of a table: it is held back until that is clear. Emphasis
that has begun is shown as if it ended here, so that its marks do not flash up. Only the open part of the screen sees
any of this; what settles is rendered from the text as it is.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

_MARKS = re.compile(r"(?:[\s>*+_=#~`|:-]|\d{1,9}[.)]?)*")  # all that a block, or a table's second line, begins with
# Of code's first line and of a table's rows nothing is shown until the line is whole.
_WHOLE = re.compile(r"[\s>]*(?:(?:[*+-]|\d{1,9}[.)])\s+)*(?:```|~~~|\|)")
_TOKENS = re.compile(r"\\.|`+|\*{1,3}|~~")


def presentable(lines: Sequence[str], rest: str) -> list[str]:
    """The lines to show for `lines` and `rest`, which has no line break yet."""
    shown = list(lines)
    if rest and not _MARKS.fullmatch(rest) and not _WHOLE.match(rest):
        return [*shown, rest]
    # A table's first line looks like text until its second is there.
    heads = [_WHOLE.match(line) is not None and "|" in line for line in shown[-2:]]
    if heads and heads[-1] and not any(heads[:-1]):
        shown.pop()
    return shown


def mended(lines: Sequence[str]) -> list[str]:
    """The lines, with the emphasis that is open in the last paragraph closed."""
    if not lines:
        return []
    start = max((at + 1 for at, line in enumerate(lines) if not line.strip()), default=0)
    *before, last = lines
    open_marks = _open("\n".join(lines[start:]))
    text = last
    for mark in reversed(open_marks):
        text = text.removesuffix(mark) if text.endswith(mark) else text + mark
    return [*before, text]


def _open(text: str) -> list[str]:
    """The marks that wait for their end, outermost first."""
    waiting: list[str] = []
    for found in _TOKENS.finditer(text):
        mark = found[0]
        if mark[0] == "\\" and "`" not in (waiting or [""])[-1]:
            continue
        if waiting and waiting[-1][0] == "`":
            if mark == waiting[-1]:
                waiting.pop()
        elif mark[0] == "`":
            waiting.append(mark)
        else:
            after = text[found.end() : found.end() + 1]
            before = text[found.start() - 1 : found.start()]
            if mark in waiting and before.strip():
                del waiting[waiting.index(mark) :]
            elif after.strip() or not after:
                waiting.append(mark)
    return waiting
