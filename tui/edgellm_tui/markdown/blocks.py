"""Paragraphs, lists and tables, one widget each: a widget costs milliseconds, and answers have hundreds of blocks."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

from markdown_it.token import Token
from rich import box
from rich.table import Table
from rich.text import Text
from textual.app import ComposeResult
from textual.containers import Horizontal, Vertical
from textual.content import Content
from textual.css.styles import RulesMap
from textual.selection import Selection
from textual.strip import Strip
from textual.style import Style
from textual.visual import RenderOptions, Visual
from textual.widgets import Label, Markdown
from textual.widgets.markdown import MarkdownBlock

from edgellm_tui.markdown.layout import Joined

BULLETS = ("•", "▪", "‣", "◦")


class Paragraph(MarkdownBlock):
    """Running text; it changes in place while it is written."""

    async def _update_from_block(self, block: MarkdownBlock) -> None:
        if isinstance(block, Paragraph):
            self.set_content(block._content)
            self._copy_context(block)
        else:
            await super()._update_from_block(block)


class Item(MarkdownBlock):
    """Holds what belongs to a bullet or a number until its list is drawn."""

    def __init__(self, markdown: Markdown, token: Token, bullet: str) -> None:
        super().__init__(markdown, token)
        depth = (token.level - 1) // 2
        self.sign = f"{bullet}." if token.info else BULLETS[depth % len(BULLETS)]


class ItemList(MarkdownBlock, Joined):
    """A list. Outermost ones have one item each (`parser`).

    As long as it is nothing but text and lists of text it is drawn as a whole; otherwise it is made of widgets.
    """

    COMPONENT_CLASSES: ClassVar[set[str]] = {"sign"}

    def __init__(self, markdown: Markdown, token: Token) -> None:
        super().__init__(markdown, token)
        self._outline: Outline | None = None

    def compose(self) -> ComposeResult:
        self._outline = self.outline()
        if self._outline is not None:
            self.update(self._outline)
            self._blocks.clear()
            return
        for item in self._blocks:
            if isinstance(item, Item):
                yield Horizontal(Label(_sign(item.sign, 0), classes="sign"), Vertical(*item._blocks))
        self._blocks.clear()

    def outline(self) -> Outline | None:
        """The whole list as rows of text; None where it holds other things. Asked before it is mounted."""
        rows: list[Row] = []
        return Outline(rows) if _collect(self, 0, rows) and rows else None

    def get_selection(self, selection: Selection) -> tuple[str, str] | None:
        return (str(self._outline), "\n") if self._outline is not None else super().get_selection(selection)

    async def _update_from_block(self, block: MarkdownBlock) -> None:
        outline = block.outline() if self._outline is not None and isinstance(block, ItemList) else None
        if outline is None:
            await super()._update_from_block(block)
        else:
            self._outline = outline
            self.update(outline)


Row = tuple[Content, Content]  # sign with its indentation, text


def _collect(block: ItemList, depth: int, rows: list[Row]) -> bool:
    """Add the rows of a list; False where it holds more than text."""
    for item in block._blocks:
        if not isinstance(item, Item):
            return False
        sign = _sign(item.sign, depth)
        for part in item._blocks:
            if isinstance(part, Paragraph):
                rows.append((sign, part._content))
                sign = Content(" " * sign.cell_length)
            elif not (isinstance(part, ItemList) and _collect(part, depth + 1, rows)):
                return False
        if not item._blocks:
            rows.append((sign, Content()))
    return True


def _sign(text: str, depth: int) -> Content:
    return Content.assemble("  " * depth, (text.rjust(3), ".sign"), " ")


class Outline(Visual):
    """Rows of text that hang from their signs."""

    def __init__(self, rows: list[Row]) -> None:
        self._rows = rows

    def __str__(self) -> str:
        return "\n".join(sign.plain.replace(" ", "", 1).rstrip() + " " + body.plain for sign, body in self._rows)

    def render_strips(self, width: int, height: int | None, style: Style, options: RenderOptions) -> list[Strip]:
        strips = []
        for sign, body in self._rows:
            (mark,) = sign.render_strips(sign.cell_length, 1, style, options)
            for line in body.render_strips(_room(sign, width), None, style, options) or [Strip([])]:
                strips.append(Strip.join([mark, line]))
                mark = Strip.blank(sign.cell_length, style.rich_style)
        return strips if height is None else strips[:height]

    def get_optimal_width(self, rules: RulesMap, container_width: int) -> int:
        return max(sign.cell_length + body.get_optimal_width(rules, container_width) for sign, body in self._rows)

    def get_height(self, rules: RulesMap, width: int) -> int:
        return sum(max(1, body.get_height(rules, _room(sign, width))) for sign, body in self._rows)


def _room(sign: Content, width: int) -> int:
    return max(1, width - sign.cell_length)


class Grid(MarkdownBlock):
    """A table."""

    def compose(self) -> ComposeResult:
        self._rows = list(_rows(self))
        self.update(_table(self._rows))
        self._blocks.clear()
        return iter(())

    def get_selection(self, _selection: Selection) -> tuple[str, str] | None:
        return "\n".join("\t".join(row) for row in self._rows), "\n"

    async def _update_from_block(self, block: MarkdownBlock) -> None:
        if isinstance(block, Grid):
            self._rows = list(_rows(block))
            self.update(_table(self._rows))
        else:
            await super()._update_from_block(block)


def _rows(table: MarkdownBlock) -> Iterator[list[str]]:
    """The texts of its cells, heads first; asked before it is mounted."""
    for part in table._blocks:
        if part._token.tag == "tr":
            yield [cell._content.plain for cell in part._blocks]
        else:
            yield from _rows(part)


def _table(rows: list[list[str]]) -> Table:
    made = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False, header_style="bold")
    for head in rows[0] if rows else []:
        made.add_column(Text(head), overflow="fold")
    for row in rows[1:]:
        made.add_row(*(Text(cell) for cell in row[: len(rows[0])]))
    return made
