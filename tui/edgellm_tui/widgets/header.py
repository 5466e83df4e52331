"""The line at the top: whom one talks to, and where that runs."""

from __future__ import annotations

from textual.content import Content
from textual.reactive import reactive
from textual.widgets import Static

from edgellm.inert import label


class Header(Static):
    """ "edgellm ──── qwen3:4b · Q4_K_M · this device" """

    facts: reactive[tuple[str, ...]] = reactive(())

    def render(self) -> Content:
        right = label(" · ".join(self.facts), max(10, self.size.width - 14))
        rule = "─" * max(0, self.size.width - len("edgellm") - Content(right).cell_length - (4 if right else 3))
        return Content.assemble(
            " ", ("edgellm", "bold"), " ", (rule, "$foreground 20%"), " " if right else "", (right, "$foreground 60%")
        )
