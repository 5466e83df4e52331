"""Tables of commands: in columns while they fit; in fewer where some can be spared; else each row below its name."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

_GAP = "  "


class Laid(msgspec.Struct, frozen=True):
    """A table to print: lines of columns, or each row as a first cell and pairs. `left_out`: columns without room."""

    lines: list[str] = []
    rows: list[tuple[str, dict[str, str]]] = []
    left_out: list[str] = []


def laid_out(columns: Sequence[str], rows: Sequence[Sequence[str]], spare: Sequence[str], room: int | None) -> Laid:
    """The table in `room` columns of a terminal, None for any number.

    columns  their names; ">" before one aligns it right
    spare    names of those that can be left out, the least important first
    """
    names = [name.removeprefix(">") for name in columns]
    widths = [max(len(row[i]) for row in (names, *rows)) for i in range(len(names))]
    kept, left_out = list(range(len(names))), list(spare)
    gone: list[str] = []
    while room is not None and _width(widths, kept) > room:
        if not left_out:
            pairs = [(row[0], dict(zip(map(str.lower, names[1:]), row[1:], strict=True))) for row in rows]
            return Laid(rows=pairs)
        gone.append(left_out.pop(0))
        kept.remove(names.index(gone[-1]))
    lines = []
    for row in (names, *rows):
        cells = [row[i].rjust(widths[i]) if columns[i].startswith(">") else row[i].ljust(widths[i]) for i in kept]
        lines.append(_GAP.join(cells).rstrip())
    return Laid(lines=lines, left_out=[name for name in names if name in gone])


def _width(widths: Sequence[int], kept: Sequence[int]) -> int:
    return sum(widths[i] for i in kept) + len(_GAP) * (len(kept) - 1)
