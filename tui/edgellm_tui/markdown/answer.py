"""The text of an answer, whole or while it comes."""

from __future__ import annotations

import asyncio
from typing import ClassVar

from textual.layout import Layout
from textual.widgets import Markdown
from textual.widgets.markdown import MarkdownBlock

from edgellm.inert import label
from edgellm_tui.markdown.blocks import Grid, Item, ItemList, Paragraph
from edgellm_tui.markdown.code import CodeBlock
from edgellm_tui.markdown.layout import GrowingLayout
from edgellm_tui.markdown.parser import parser, readable
from edgellm_tui.messages import CopyAsked

PIECE = 400  # characters drawn in one frame
FRAME_S = 1 / 60  # the screen is painted in between


class AnswerText(Markdown):
    """Give it the text at once, or `write` it piece by piece and `finish`."""

    BLOCKS: ClassVar[dict[str, type[MarkdownBlock]]] = {  # type: ignore[misc]
        **Markdown.BLOCKS,
        "fence": CodeBlock,
        "code_block": CodeBlock,
        "bullet_list_open": ItemList,
        "ordered_list_open": ItemList,
        "list_item_ordered_open": Item,
        "list_item_unordered_open": Item,
        "paragraph_open": Paragraph,
        "table_open": Grid,
    }

    def __init__(self, text: str = "") -> None:
        made = parser()  # one of its own: they are not safe to share between threads
        super().__init__(readable(text), parser_factory=lambda: made, open_links=False)
        self._waiting = ""
        self._drawing: asyncio.Task[None] | None = None
        self._growing = GrowingLayout()

    @property
    def layout(self) -> Layout:
        return self._growing

    async def write(self, text: str) -> None:
        """Append; what comes faster than it can be drawn waits, so that no frame takes long."""
        self._waiting += readable(text)
        if self._drawing is None or self._drawing.done():
            self._drawing = asyncio.create_task(self._draw())

    async def _draw(self) -> None:
        while self._waiting:
            piece, self._waiting = self._waiting[:PIECE], self._waiting[PIECE:]
            await self.append(piece)
            await asyncio.sleep(FRAME_S)

    async def finish(self) -> None:
        """Nothing more will be written."""
        if self._drawing is not None:
            await self._drawing
            self._drawing = None
            for block in self.query(CodeBlock):
                block.finish()
            self._growing.reset()

    def notify_style_update(self) -> None:
        """The theme has changed, and with it, perhaps, the room that blocks need."""
        self._growing.reset()
        super().notify_style_update()

    def on_markdown_link_clicked(self, event: Markdown.LinkClicked) -> None:
        """An address that a model wrote is not opened: it may carry what was said to it. It can be copied and read."""
        event.stop()
        self.post_message(CopyAsked(event.href, f"the address {label(event.href, 60)}"))
