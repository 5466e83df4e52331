"""Text that arrives in pieces, as lines: settled ones, which never change again, and those still open.

What is settled depends on whole lines of the source alone, one after the other; so the result is the same however the
text was cut into pieces.
"""

from __future__ import annotations

import re
from typing import Protocol

import msgspec

from edgellm.cli.render.markdown import Renderer, apart, parse
from edgellm.cli.render.measure import wrapped
from edgellm.cli.render.pending import mended, presentable
from edgellm.cli.render.styles import Styles, paint
from edgellm.inert import inert


class Document(Protocol):
    def feed(self, text: str, width: int) -> list[str]:
        """Take more text; the lines that are settled by it."""
        ...

    def open(self, width: int) -> list[str]:
        """What is not settled, as it looks now."""
        ...

    def finish(self, width: int) -> list[str]:
        """No more comes: the rest of the lines."""
        ...


class Plain:
    """Text as it is, in one look, broken at spaces."""

    def __init__(self, look: str = "") -> None:
        self._look = look
        self._line = ""
        self._blank = 0  # lines that may turn out to be the last

    def feed(self, text: str, width: int) -> list[str]:
        *whole, self._line = (self._line + inert(text)).split("\n")
        return [shown for line in whole for shown in self._shown(line, width)]

    def open(self, width: int) -> list[str]:
        if not self._line.strip():
            return []
        return [*[""] * self._blank, *wrapped(paint(self._line, self._look), width)]

    def finish(self, width: int) -> list[str]:
        lines = self._shown(self._line, width)
        self._line, self._blank = "", 0
        return lines

    def _shown(self, line: str, width: int) -> list[str]:
        if not line.strip():
            self._blank += 1
            return []
        lines = [*[""] * self._blank, *wrapped(paint(line, self._look), width)]
        self._blank = 0
        return lines


class _Fence(msgspec.Struct, frozen=True):
    """A block of code that is open: its mark, and the spaces before it."""

    mark: str
    indent: int

    def closes(self, line: str) -> bool:
        found = re.fullmatch(r" {0,3}(`{3,}|~{3,})[ \t]*", line)
        return found is not None and found[1].startswith(self.mark)

    def code(self, line: str) -> str:
        """The line without the spaces that the mark has, too."""
        spaces = len(line) - len(line.lstrip(" "))
        return line[min(spaces, self.indent) :]


class Markdown:
    """A growing markdown document. Blocks, items of a list and lines of code settle when the next one begins."""

    def __init__(self, styles: Styles) -> None:
        self._renderer = Renderer(styles)
        self._lines: list[str] = []  # whole lines of the block, or of the item, that is open
        self._rest = ""  # of the line that is not whole yet
        self._fence: _Fence | None = None
        self._gap = False  # a blank line comes before what is open
        self._begun = False

    def feed(self, text: str, width: int) -> list[str]:
        *whole, self._rest = (self._rest + inert(text)).split("\n")
        return [shown for line in whole for shown in self._take(line, width)]

    def open(self, width: int) -> list[str]:
        if self._fence is not None:
            hidden = not self._rest or self._rest.strip(" \t").strip(self._fence.mark[0]) == ""
            return [] if hidden else [paint(self._fence.code(self._rest))]
        return self._rendered(mended(presentable(self._lines, self._rest)), width)

    def finish(self, width: int) -> list[str]:
        settled = self._take(self._rest, width) if self._rest else []
        if self._fence is not None:
            settled.append(self._renderer.code_end(width))
        settled += self._rendered(self._lines, width)
        self._lines, self._rest, self._fence = [], "", None
        return settled

    def _take(self, line: str, width: int) -> list[str]:
        """One whole line."""
        if self._fence is not None:
            if not self._fence.closes(line):
                return [paint(self._fence.code(line))]
            self._fence, self._gap = None, False
            return [self._renderer.code_end(width)]
        if not self._lines and not line.strip():
            self._gap = True
            return []
        self._lines.append(line)
        return self._settle(width)

    def _settle(self, width: int) -> list[str]:
        """Take off what a later line cannot reach any more."""
        settled: list[str] = []
        nodes = parse(self._lines)
        while nodes and nodes[-1].map:
            if len(nodes) == 1 and nodes[0].type.endswith("_list"):
                nodes = nodes[0].children
            if len(nodes) == 1:
                break
            start = nodes[-1].map[0] if nodes[-1].map else 0
            settled += self._emitted(self._renderer.blocks(nodes[:-1], self._lines, width))
            self._gap = apart(nodes[-1], self._lines)
            self._lines = self._lines[start:]
            nodes = parse(self._lines)
        if len(nodes) == 1 and nodes[0].type == "fence":
            indent = len(self._lines[0]) - len(self._lines[0].lstrip(" "))
            self._fence = _Fence(nodes[0].markup, indent)
            settled += self._emitted([self._renderer.code_begin(nodes[0].info, width)])
            self._lines = []
        return settled

    def _rendered(self, lines: list[str], width: int) -> list[str]:
        shown = self._renderer.blocks(parse(lines), lines, width)
        return ["", *shown] if shown and self._gap and self._begun else shown

    def _emitted(self, lines: list[str]) -> list[str]:
        """Lines that are settled now, with the blank line before them."""
        if self._gap and self._begun and lines:
            lines = ["", *lines]
        self._begun = self._begun or bool(lines)
        return lines
