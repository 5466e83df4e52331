"""F2: how answers are made. A setting is chosen, then its value is typed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import ClassVar

from textual.binding import Binding, BindingType
from textual.content import Content
from textual.widgets import Input
from textual.widgets.option_list import Option

from edgellm.errors import InvalidRequest
from edgellm.inert import label
from edgellm.wishes import SETTINGS, Wishes
from edgellm_tui.screens.chooser import Chooser

_NAME = 18


class SettingsScreen(Chooser):
    """`change` is called with the new wishes each time one changes."""

    TITLE_TEXT = "settings for answers"
    HINT = "enter changes it · delete takes it back · esc back"
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "back", "back", id="settings.back", priority=True),
        Binding("delete", "take_back", "take back", id="settings.take_back", priority=True),
    ]

    def __init__(self, wishes: Wishes, change: Callable[[Wishes], None]) -> None:
        super().__init__()
        self._wishes = wishes
        self._change = change
        self._editing = ""  # the setting whose value is being typed

    async def options(self, words: str) -> Sequence[Option]:
        wanted = "" if self._editing else words.lower().strip()
        values = self._wishes.values()
        rows = [
            Option(
                Content.assemble(
                    (name.ljust(_NAME), "bold"),
                    "" if values[name] is None else f"{label(str(values[name]), 40)}  ",
                    (setting.meaning, "$foreground 60%"),
                ),
                id=name,
            )
            for name, setting in SETTINGS.items()
            if wanted in f"{name} {setting.meaning}".lower()
        ]
        return rows or [Option(Content("no such setting"), disabled=True)]

    def choose(self, id: str) -> None:
        value = self._wishes.values()[id]
        self._edit(id, "" if value is None else str(value))
        self.say(f"{id}: {SETTINGS[id].takes}; empty takes it back · esc back")

    async def submitted(self, text: str) -> None:
        if not self._editing:
            await super().submitted(text)
        elif self._set(self._editing, text):
            self._edit("", "")
            await self.fill()

    async def action_take_back(self) -> None:
        """What is highlighted is decided elsewhere again; while a value is typed, the key is the line's own."""
        if self._editing:
            self.query_one(Input).action_delete_right()
        elif self.highlighted and self._set(self.highlighted, ""):
            await self.fill()

    def action_back(self) -> None:
        if self._editing:
            self._edit("", "")
            self.say("")
        else:
            self.dismiss(None)

    def _edit(self, name: str, value: str) -> None:
        self._editing = name
        line = self.query_one(Input)
        line.placeholder = name or "type to narrow"
        line.value = value
        line.cursor_position = len(value)

    def _set(self, name: str, text: str) -> bool:
        try:
            self._wishes = self._wishes.changed(name, text)
        except InvalidRequest as error:
            self.say(f"{error.message}: {error.hint}")
            return False
        self.say("")
        self._change(self._wishes)
        return True
