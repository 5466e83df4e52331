"""Markdown as lines for a terminal.

The parser is markdown-it's CommonMark with tables and strikethrough, changed where an answer that is still growing, or
an untrusted one, asks for it:

- no link reference definitions and no underlined headings: what was shown must not change because of a later line;
- HTML is text;
- line breaks stay (poems, addresses), and a blank line stands where the source has one;
- links show where they lead.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import TYPE_CHECKING

import wcwidth

from edgellm.cli.render.measure import columns, wrapped
from edgellm.cli.render.styles import Styles, paint
from edgellm.cli.render.table import Alignment, table
from edgellm.inert import label

if TYPE_CHECKING:
    from markdown_it import MarkdownIt
    from markdown_it.tree import SyntaxTreeNode

_NARROWEST = 10  # columns that nested text keeps, however deep
_INFO = 30  # characters of a language's name


@functools.cache
def _parser() -> MarkdownIt:
    from markdown_it import MarkdownIt

    rules = MarkdownIt("commonmark").enable(["table", "strikethrough"])
    return rules.disable(["reference", "lheading", "html_block", "html_inline"])


def parse(lines: Sequence[str]) -> list[SyntaxTreeNode]:
    """The blocks at the top; each one's `map` is its range of lines."""
    from markdown_it.tree import SyntaxTreeNode

    return SyntaxTreeNode(_parser().parse("\n".join(lines))).children


class Renderer:
    """Blocks to lines of at most some width; lines of code alone keep their length, so that they can be copied."""

    def __init__(self, styles: Styles) -> None:
        self.styles = styles

    def blocks(self, nodes: Sequence[SyntaxTreeNode], source: Sequence[str], width: int) -> list[str]:
        """Neighbouring blocks (or items of one list) of `source`."""
        lines: list[str] = []
        for node in nodes:
            if lines and apart(node, source):
                lines.append("")
            lines += self._block(node, source, max(_NARROWEST, width))
        return lines

    def code_begin(self, info: str, width: int) -> str:
        """The line above a block of code."""
        words = info.split()
        name = f" {label(words[0], _INFO)} " if words else ""
        head = self.styles.rule * 2 + name
        return paint(head + self.styles.rule * (width - columns(head)), self.styles.faint)

    def code_end(self, width: int) -> str:
        """The line below it."""
        return paint(self.styles.rule * width, self.styles.faint)

    # -- blocks ------------------------------------------------------------------------------------

    def _block(self, node: SyntaxTreeNode, source: Sequence[str], width: int) -> list[str]:
        match node.type:
            case "paragraph":
                return wrapped(self._inline(node), width)
            case "heading":
                level = min(int(node.tag[1:]), len(self.styles.headings))
                return wrapped(self._inline(node, self.styles.headings[level - 1]), width)
            case "bullet_list" | "ordered_list":
                return self.blocks(node.children, source, width)
            case "list_item":
                return self._item(node, source, width)
            case "blockquote":
                bar = paint(self.styles.bar, self.styles.faint)
                return [f"{bar} {line}".rstrip() for line in self.blocks(node.children, source, width - 2)]
            case "fence" | "code_block":
                code = [paint(line) for line in node.content.removesuffix("\n").split("\n")] if node.content else []
                return [self.code_begin(node.info, width), *code, self.code_end(width)]
            case "hr":
                return [paint(self.styles.rule * width, self.styles.faint)]
            case "table":
                return self._table(node, width)
            case _:
                return wrapped(paint("\n".join(source[slice(*node.map)])) if node.map else "", width)

    def _item(self, node: SyntaxTreeNode, source: Sequence[str], width: int) -> list[str]:
        mark = f"{node.info}{node.markup} " if node.info else f"{self.styles.bullet} "
        body = self.blocks(node.children, source, width - len(mark)) or [""]
        return [(mark + body[0]).rstrip(), *(" " * len(mark) + line if line else "" for line in body[1:])]

    def _table(self, node: SyntaxTreeNode, width: int) -> list[str]:
        rows = [row for part in node.children for row in part.children]
        align = [_alignment(cell) for cell in rows[0].children]
        header = [self._cell(cell, self.styles.strong) for cell in rows[0].children]
        body = [[self._cell(cell) for cell in row.children] for row in rows[1:]]
        return table(header, body, align, width, self.styles)

    def _cell(self, node: SyntaxTreeNode, *codes: str) -> str:
        return self._inline(node, *codes).replace("\n", " ")

    # -- text --------------------------------------------------------------------------------------

    def _inline(self, node: SyntaxTreeNode, *codes: str) -> str:
        """A block's text, painted; line breaks where the source has them."""
        return "".join(self._span(child, codes) for inline in node.children for child in inline.children)

    def _span(self, node: SyntaxTreeNode, codes: tuple[str, ...]) -> str:
        styles = self.styles
        match node.type:
            case "softbreak" | "hardbreak":
                return "\n"
            case "code_inline":
                return paint(f"{styles.code_mark}{node.content}{styles.code_mark}", *codes, styles.code)
            case "strong" | "em" | "s":
                look = {"strong": styles.strong, "em": styles.emphasis, "s": styles.strike}[node.type]
                return self._spans(node, (*codes, look))
            case "link" | "image":
                return self._link(node, codes)
            case _:
                return paint(node.content, *codes)

    def _spans(self, node: SyntaxTreeNode, codes: tuple[str, ...]) -> str:
        return "".join(self._span(child, codes) for child in node.children)

    def _link(self, node: SyntaxTreeNode, codes: tuple[str, ...]) -> str:
        """The text and where it leads; a link that is its own text is shown once."""
        target = str(node.attrs.get("href") or node.attrs.get("src") or "")
        text = self._spans(node, (*codes, self.styles.link)) or paint(node.content, *codes, self.styles.link)
        if not target or wcwidth.strip_sequences(text) in (target, target.removeprefix("mailto:")):
            return text
        return f"{text} {paint(f'({target})', *codes, self.styles.faint)}"


def apart(node: SyntaxTreeNode, source: Sequence[str]) -> bool:
    """Whether the source has a blank line before this block, also inside quotes."""
    return bool(node.map and node.map[0] > 0 and not source[node.map[0] - 1].strip(" \t>"))


def _alignment(cell: SyntaxTreeNode) -> Alignment:
    style = str(cell.attrs.get("style", ""))
    return "right" if "right" in style else "center" if "center" in style else "left"
