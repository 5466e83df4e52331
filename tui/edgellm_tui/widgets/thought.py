"""What a model thought before it answered: one line once the answer has begun, and all of it on request."""

from __future__ import annotations

from textual.app import ComposeResult
from textual.containers import Vertical
from textual.content import Content
from textual.widgets import Label, Static

from edgellm.inert import inert
from edgellm.units import seconds


class Thought(Vertical):
    """Hidden while there is none. Open while it grows; `fold` closes it, a click or the toggle opens it again."""

    def __init__(self, text: str = "", thought_s: float = 0.0) -> None:
        super().__init__()
        self._text = text
        self._seconds = thought_s
        self._folded = bool(text)

    def compose(self) -> ComposeResult:
        yield Label("", classes="caption")
        yield Static("", classes="thought")

    def on_mount(self) -> None:
        self._draw()

    def grow(self, text: str, thought_s: float) -> None:
        self._text += text
        self._seconds = thought_s
        self._draw()

    def fold(self) -> None:
        """The answer has begun."""
        if not self._folded:
            self._folded = True
            self._draw()

    def toggle(self) -> None:
        self._folded = not self._folded
        self._draw()

    def on_click(self) -> None:
        self.toggle()

    def _draw(self) -> None:
        self.display = bool(self._text)
        if not self._text:
            return
        sign, word = ("▸", "thought") if self._folded else ("▾", "thinking")
        self.query_one(".caption", Label).update(Content(f"{sign} {word} {seconds(self._seconds, whole=True)}"))
        body = self.query_one(".thought", Static)
        body.display = not self._folded
        if not self._folded:
            body.update(Content(inert(self._text.strip())))
