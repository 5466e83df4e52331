"""Code in an answer: coloured and drawn in pieces, so that a long one costs no more than a short one while it grows."""

from __future__ import annotations

from functools import cache
from typing import ClassVar

from markdown_it.token import Token
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.content import Content
from textual.widgets import Label, Markdown
from textual.widgets.markdown import MarkdownBlock, MarkdownFence

from edgellm.inert import label
from edgellm_tui.messages import CopyAsked

PIECE = 24  # lines that are coloured and drawn together; only the last piece of a growing block changes
WHOLE = 8  # pieces that are coloured as one at the end; more would hold up the screen


class CodeBlock(MarkdownFence, can_focus=True):
    """Code in a frame of its own. Focused, a key copies it: the code alone, without the frame."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("c", "copy_code", "copy", id="code.copy"),
        Binding("left", "scroll_left", show=False),
        Binding("right", "scroll_right", show=False),
    ]

    def __init__(self, markdown: Markdown, token: Token, code: str) -> None:
        MarkdownBlock.__init__(self, markdown, token)  # the parent's would colour all of it at once
        self.code = code
        self.lexer = token.info
        self.auto_links = False
        self._pieces = _pieces(code)
        self._caption()

    def compose(self) -> ComposeResult:
        for piece in self._pieces:
            yield Label(self._coloured(piece), classes="piece")

    def action_copy_code(self) -> None:
        self.post_message(CopyAsked(self.code, "the code"))

    def finish(self) -> None:
        """Colour it as a whole: what spans pieces (a long string) is known only now."""
        if 1 < len(self._pieces) <= WHOLE:
            lines = self._coloured(self.code).split("\n", allow_blank=True)
            for index, shown in enumerate(self.query(Label)):
                shown.update(Content("\n").join(lines[index * PIECE : (index + 1) * PIECE]))

    def notify_style_update(self) -> None:
        """The theme has changed."""
        for shown, piece in zip(self.query(Label), self._pieces, strict=False):
            shown.update(self._coloured(piece))
        super(MarkdownFence, self).notify_style_update()

    async def _update_from_block(self, block: MarkdownBlock) -> None:
        if not isinstance(block, CodeBlock):
            await super()._update_from_block(block)
            return
        shown = list(self.query(Label))
        for index, (old, new) in enumerate(zip(self._pieces, block._pieces, strict=False)):
            if old != new and index < len(shown):
                shown[index].update(self._coloured(new))
        added = block._pieces[len(shown) :]
        self.code, self.lexer, self._pieces = block.code, block.lexer, block._pieces
        self._token = block._token
        self._caption()
        if added:
            await self.mount_all([Label(self._coloured(piece), classes="piece") for piece in added])

    def _coloured(self, code: str) -> Content:
        language = (self.lexer.split() or [""])[0].lower()
        if language not in _languages():  # guessing, and looking for what is not there, take a tenth of a second
            return Content(code)
        dark = self.app.current_theme.dark
        return self.highlight(code, language, ansi=self.app.native_ansi_color, dark=dark)

    def _caption(self) -> None:
        words = self.lexer.split()
        self.border_title = Content(label(words[0], 20) if words else "code")
        self.border_subtitle = Content("c copies")


@cache
def _languages() -> frozenset[str]:
    """What code can be coloured as, by the names that stand behind fences."""
    from pygments.lexers import get_all_lexers

    return frozenset(alias.lower() for _, aliases, _, _ in get_all_lexers(plugins=False) for alias in aliases)


def _pieces(code: str) -> list[str]:
    lines = code.split("\n")
    return ["\n".join(lines[at : at + PIECE]) for at in range(0, len(lines), PIECE)]
