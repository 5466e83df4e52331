"""All keys on one page."""

from __future__ import annotations

from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.content import Content
from textual.screen import ModalScreen
from textual.widgets import Label

SECTIONS: tuple[tuple[str, tuple[tuple[str, str], ...]], ...] = (
    (
        "writing",
        (
            ("enter", "send; after a failure, in an empty prompt: try again"),
            ("ctrl+j, shift+enter", "a new line (shift+enter where the terminal tells them apart)"),
            ("up, in an empty prompt", "the last question again"),
            ("esc", "stop the answer, also before it has begun; back to the prompt"),
        ),
    ),
    (
        "conversations",
        (
            ("ctrl+n", "a new one"),
            ("ctrl+r", "an earlier one; found by title or by what was said"),
            ("ctrl+b", "the list at the left"),
            ("f5", "answer the last question again"),
            ("ctrl+o", "another model, here or to be fetched"),
        ),
    ),
    (
        "reading",
        (
            ("pgup pgdn, ctrl+home ctrl+end", "scroll; at the bottom it follows the answer again"),
            ("shift+tab", "to the code blocks; there c copies"),
            ("ctrl+y", "copy the last answer"),
            ("ctrl+t", "show or hide what the model thought"),
        ),
    ),
    (
        "the rest",
        (("ctrl+p", "everything, by name; themes too"), ("ctrl+q", "leave; all is kept"), ("f1", "this page")),
    ),
)


class HelpScreen(ModalScreen[None]):
    CSS_PATH = "help.tcss"
    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape,f1,q,enter", "dismiss", "back", id="help.back")]

    def compose(self) -> ComposeResult:
        with VerticalScroll(id="page") as page:
            page.border_title = "keys"
            page.border_subtitle = "esc back"
            for title, keys in SECTIONS:
                yield Label(title, classes="section")
                for key, meaning in keys:
                    yield Label(Content.assemble((key.ljust(30), "bold"), " ", (meaning, "$text-muted")))
