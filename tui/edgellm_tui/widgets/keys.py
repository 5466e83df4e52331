"""The line at the bottom: the keys that mean something now."""

from __future__ import annotations

from collections.abc import Sequence

from textual.content import Content
from textual.reactive import reactive
from textual.widgets import Static

Key = tuple[str, str]  # as printed on it, what it does
IDLE: Sequence[Key] = (
    ("enter", "send"), ("^j", "newline"), ("^o", "model"), ("^r", "history"), ("^n", "new"), ("^p", "everything"),
    ("f1", "help"),
)  # fmt: skip
ANSWERING: Sequence[Key] = (("esc", "stop"), ("^j", "newline"), ("pgup", "scroll"), ("^p", "everything"))
FAILED: Sequence[Key] = (("enter", "try again"), ("^o", "model"), ("^r", "history"), ("^n", "new"), ("f1", "help"))
OFFER: Sequence[Key] = (("enter", "fetch"), ("^o", "model"), ("^r", "history"), ("^p", "everything"), ("f1", "help"))
CODE: Sequence[Key] = (("c", "copy code"), ("←→", "scroll"), ("tab", "next"), ("esc", "back to the prompt"))
LIST: Sequence[Key] = (("↑↓", "choose"), ("enter", "open"), ("^b", "hide"), ("esc", "back to the prompt"))


class KeyLine(Static):
    keys: reactive[Sequence[Key]] = reactive(IDLE)

    def render(self) -> Content:
        """As many as there is room for. The last goes before those in the middle: it leads to help, or back."""
        *first, last = [Content.assemble((key, "bold"), f" {meaning}") for key, meaning in self.keys]
        room = self.size.width - 2 - last.cell_length
        shown: list[Content] = []
        for part in first:
            room -= part.cell_length + 2
            if room < 0:
                break
            shown.append(part)
        return Content(" ") + Content("  ").join([*shown, last])
