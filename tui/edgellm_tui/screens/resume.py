"""Choosing an earlier conversation, by its title or by what was said in it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from typing import ClassVar

from textual.binding import Binding, BindingType
from textual.content import Content
from textual.widgets.option_list import Option

from edgellm.errors import EdgeError
from edgellm.inert import label
from edgellm.units import ago
from edgellm_tui.history import History
from edgellm_tui.screens.chooser import Chooser

MOST = 200
_TITLE = 46


class ResumeScreen(Chooser):
    """Dismissed with the id of a conversation."""

    TITLE_TEXT = "conversations"
    HINT = "enter opens · delete removes · esc back"
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("delete", "remove", "remove", id="resume.remove", priority=True),
    ]

    def __init__(self, history: History) -> None:
        super().__init__()
        self._history = history
        self._doomed: str | None = None
        self.removed: set[int] = set()

    async def options(self, words: str) -> Sequence[Option]:
        self._doomed = None
        try:
            found = await asyncio.to_thread(self._history.conversations, MOST, words)
        except EdgeError as error:
            self.say(error.message)
            found = []
        if not found:
            return [Option(Content("nothing found" if words.strip() else "no conversations yet"), disabled=True)]
        now = time.time()
        return [
            Option(
                Content.assemble(
                    Content(label(each.title) or "untitled").truncate(_TITLE, ellipsis=True, pad=True),
                    (f" {ago(now - each.updated)} · {label(each.model, 20)}", "$foreground 60%"),
                ),
                id=str(each.id),
            )
            for each in found
        ]

    async def action_remove(self) -> None:
        """Asked twice: there is no way back."""
        chosen = self.highlighted
        if chosen is None:
            return
        if self._doomed != chosen:
            self._doomed = chosen
            self.say("delete once more removes this conversation for good")
            return
        try:
            await asyncio.to_thread(self._history.remove, int(chosen))
        except EdgeError as error:
            self.say(error.message)
            return
        self.removed.add(int(chosen))
        self.say("removed")
        await self.fill()
