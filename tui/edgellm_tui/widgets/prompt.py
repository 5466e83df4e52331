"""Where the user writes. It grows upward with what is written."""

from __future__ import annotations

import asyncio
from typing import ClassVar

from textual import events
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal
from textual.content import Content
from textual.widgets import Label, TextArea

from edgellm import slash
from edgellm.inert import inert
from edgellm.units import number
from edgellm_tui.completing import completed
from edgellm_tui.messages import EmptySubmitted, Submitted, TooEarly

_CHOICES = 20  # how many ways to go on are shown


class PromptArea(TextArea):
    """Enter sends; ctrl+j and shift+enter begin a new line; tab completes."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("enter", "submit", "send", id="prompt.send"),
        Binding("ctrl+j,shift+enter,alt+enter", "newline", "newline", id="prompt.newline"),
        Binding("up", "up_or_recall", show=False),
        Binding("ctrl+d", "delete_or_leave", show=False),
    ]

    def __init__(self) -> None:
        super().__init__(soft_wrap=True, show_line_numbers=False, highlight_cursor_line=False, tab_behavior="focus")
        self.cursor_blink = False
        self.last_question = ""
        self.busy = False  # an answer is coming: what is written stays until it is there

    def action_submit(self) -> None:
        """It is empty at once: what is typed from now on belongs to the next question."""
        text = self.text
        if self.busy and slash.split(text) is None:
            self.post_message(TooEarly())
        elif text.strip():
            self.text = ""
            self.post_message(Submitted(text))
        else:
            self.post_message(EmptySubmitted())

    def put_back(self, text: str) -> None:
        """Not now: there it is again."""
        self.text = text + self.text
        self.move_cursor(self.document.end)

    def action_newline(self) -> None:
        self.insert("\n")
        self.scroll_cursor_visible()

    def action_up_or_recall(self) -> None:
        """In an empty prompt: the last question again, to be changed."""
        if not self.text and self.last_question:
            self.text = self.last_question
            self.move_cursor(self.document.end)
        else:
            self.action_cursor_up()

    def action_delete_or_leave(self) -> None:
        """As a shell has it: in an empty prompt it is goodbye."""
        if self.text:
            self.action_delete_right()
        else:
            self.app.exit()

    async def _on_key(self, event: events.Key) -> None:
        """Its own keys act in the order in which they are typed. A binding would wait for its turn elsewhere, and enter
        would take more, or less, than what was typed before it.
        """
        if event.key == "tab":
            await self._complete(event)
            return
        for binding in self._bindings.key_to_bindings.get(event.key, ()):
            if binding.action in ("submit", "newline"):
                event.prevent_default()
                event.stop()
                await self.run_action(binding.action)

    async def _complete(self, event: events.Key) -> None:
        """A command or a file's name that has begun is completed; else tab goes to what follows the prompt."""
        cursor = self.cursor_location
        before = self.get_text_range((0, 0), cursor)
        found = await asyncio.to_thread(completed, before)
        if found is None:
            return
        event.prevent_default()
        event.stop()
        if found.text != before:
            self.move_cursor(self.replace(found.text, (0, 0), cursor).end_location)
        elif found.choices:
            shown = found.choices[:_CHOICES]
            more = len(found.choices) - len(shown)
            self.notify("  ".join(shown) + (f"  and {number(more)} more" if more else ""), timeout=6, markup=False)

    async def _on_paste(self, event: events.Paste) -> None:
        """What comes from elsewhere may hold control sequences."""
        event.prevent_default()
        event.stop()
        result = self.replace(inert(event.text.replace("\r\n", "\n").replace("\r", "\n")), *self.selection)
        self.move_cursor(result.end_location)


class Prompt(Horizontal):
    """The area with its mark."""

    def compose(self) -> ComposeResult:
        yield Label("›", id="mark")
        yield PromptArea()

    @property
    def area(self) -> PromptArea:
        return self.query_one(PromptArea)

    @property
    def text(self) -> str:
        return self.area.text

    def invite(self, words: str) -> None:
        """What stands in it while nothing is written."""
        self.area.placeholder = Content(words)
