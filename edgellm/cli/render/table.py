"""Tables in the columns there are: aligned while they fit, wrapped inside their cells when they do not, and one line
for each cell where even that would be too narrow to read.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import zip_longest
from typing import Literal

from edgellm.cli.render.measure import columns, wrapped
from edgellm.cli.render.styles import Styles, paint

Alignment = Literal["left", "right", "center"]
SAMPLE = 10  # rows that decide the widths; so a long table can be shown, and scroll away, while it still grows
_NARROWEST = 6  # columns that a wrapped cell needs to be readable
_GAP = 3  # " │ "


def table(
    header: Sequence[str], rows: Sequence[Sequence[str]], align: Sequence[Alignment], width: int, styles: Styles
) -> list[str]:
    """Lines of at most `width` columns. Cells are painted text without line breaks."""
    natural = [
        max(1, *(columns(cells[i]) for cells in (header, *rows[:SAMPLE]) if i < len(cells))) for i in range(len(header))
    ]
    widths = _widths(natural, width - _GAP * (len(header) - 1))
    if widths is None:
        return _records(header, rows, width, styles)
    bar = f" {paint(styles.bar, styles.faint)} "
    joint = f"{styles.rule}{styles.cross}{styles.rule}"
    rule = paint(joint.join(styles.rule * wide for wide in widths), styles.faint)
    lines = _row(header, widths, align, bar)
    lines.append(rule)
    for cells in rows:
        lines += _row(cells, widths, align, bar)
    return lines


def _widths(natural: Sequence[int], room: int) -> list[int] | None:
    """Each column's width: what it wants, the widest ones cut first; None where they would be too narrow."""
    if sum(natural) <= room:
        return list(natural)
    cap = max(natural)
    while cap > _NARROWEST and sum(min(wide, cap) for wide in natural) > room:
        cap -= 1
    widths = [min(wide, cap) for wide in natural]
    return widths if sum(widths) <= room else None


def _row(cells: Sequence[str], widths: Sequence[int], align: Sequence[Alignment], bar: str) -> list[str]:
    parts = [wrapped(cell, wide) for cell, wide in zip(cells, widths, strict=False)]
    parts += [[""]] * (len(widths) - len(parts))
    return [
        bar.join(_aligned(part, wide, how) for part, wide, how in zip(line, widths, align, strict=True)).rstrip()
        for line in zip_longest(*parts, fillvalue="")
    ]


def _aligned(text: str, wide: int, how: Alignment) -> str:
    spare = max(0, wide - columns(text))
    before = {"left": 0, "right": spare, "center": spare // 2}[how]
    return " " * before + text + " " * (spare - before)


def _records(header: Sequence[str], rows: Sequence[Sequence[str]], width: int, styles: Styles) -> list[str]:
    """Each row as lines "name: value", rows apart by a rule."""
    lines: list[str] = []
    for number, cells in enumerate(rows):
        if number:
            lines.append(paint(styles.rule * min(width, 8), styles.faint))
        for name, cell in zip(header, cells, strict=False):
            lines += wrapped(f"{name}: {cell}", width, indent="  ")
    return lines or wrapped(", ".join(header), width)
