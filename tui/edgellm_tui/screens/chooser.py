"""A list to choose from, narrowed by typing. Models and conversations are chosen alike."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.screen import ModalScreen
from textual.widgets import Input, Label, OptionList
from textual.widgets.option_list import Option


class Chooser(ModalScreen[str]):
    """Dismissed with the id of what was chosen; with None when nothing was."""

    CSS_PATH = "chooser.tcss"
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "dismiss(None)", "back", id="chooser.back"),
        Binding("down", "move(1)", show=False, priority=True),
        Binding("up", "move(-1)", show=False, priority=True),
        Binding("pagedown", "move(8)", show=False, priority=True),
        Binding("pageup", "move(-8)", show=False, priority=True),
    ]
    TITLE_TEXT = ""
    HINT = ""

    def compose(self) -> ComposeResult:
        with Vertical(id="box") as box:
            box.border_title = self.TITLE_TEXT
            narrow = Input(placeholder="type to narrow", compact=True)
            narrow.cursor_blink = False
            yield narrow
            yield OptionList()
            yield Label(self.HINT, id="hint", markup=False)

    async def options(self, words: str) -> Sequence[Option]:
        """What there is to choose from, for what was typed."""
        raise NotImplementedError

    async def on_mount(self) -> None:
        self.query_one(OptionList).can_focus = False  # typing stays possible, whatever is highlighted
        await self.fill()

    async def fill(self) -> None:
        """Show the list anew; what was highlighted stays so."""
        chosen = self.highlighted
        rows = await self.options(self.query_one(Input).value)
        shown = self.query_one(OptionList)
        shown.clear_options()
        shown.add_options(rows)
        ids = [row.id for row in rows]
        if ids:
            shown.highlighted = ids.index(chosen) if chosen is not None and chosen in ids else _first_enabled(rows)

    @property
    def highlighted(self) -> str | None:
        """The id of the row under the bar."""
        shown = self.query_one(OptionList)
        return shown.highlighted_option.id if shown.highlighted_option is not None else None

    def say(self, text: str) -> None:
        self.query_one("#hint", Label).update(text or self.HINT)

    def choose(self, id: str) -> None:
        """Called with what was chosen."""
        self.dismiss(id)

    def action_move(self, rows: int) -> None:
        shown = self.query_one(OptionList)
        for _ in range(abs(rows)):
            if abs(rows) > 1 and shown.highlighted in (0 if rows < 0 else shown.option_count - 1,):
                break
            (shown.action_cursor_down if rows > 0 else shown.action_cursor_up)()

    async def on_input_changed(self, event: Input.Changed) -> None:
        event.stop()
        await self.fill()

    async def on_input_submitted(self, event: Input.Submitted) -> None:
        event.stop()
        await self.submitted(event.value)

    async def submitted(self, text: str) -> None:
        """Enter, after `text`: what is highlighted is chosen."""
        del text
        if self.highlighted is not None:
            self.choose(self.highlighted)

    def on_option_list_option_selected(self, event: OptionList.OptionSelected) -> None:
        event.stop()
        if event.option_id is not None:
            self.choose(event.option_id)


def _first_enabled(rows: Sequence[Option]) -> int:
    return next((index for index, row in enumerate(rows) if not row.disabled), 0)
