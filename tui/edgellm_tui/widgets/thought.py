"""What a model thought before it answered: one line once the answer has begun, and all of it on request."""

from __future__ import annotations

from textual.content import Content
from textual.widgets import Static

from edgellm.inert import inert
from edgellm.units import seconds


class Thought(Static):
    """Hidden while there is none. Open while it grows; `fold` closes it, a click or the toggle opens it again."""

    def __init__(self, text: str = "", thought_s: float = 0.0) -> None:
        super().__init__()
        self._text = text
        self._seconds = thought_s
        self._folded = bool(text)
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
        sign, word = ("▸", "thought") if self._folded else ("▾", "thinking")
        caption = Content(f"{sign} {word} {seconds(self._seconds, whole=True)}")
        shown = "" if self._folded else "\n" + inert(self._text.strip())
        self.update(caption + Content.styled(shown, "italic"))
