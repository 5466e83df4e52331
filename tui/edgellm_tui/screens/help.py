"""All keys on one page."""

from __future__ import annotations

from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.content import Content
from textual.screen import ModalScreen
from textual.widgets import Label, Static

from edgellm_tui.commands import COMMANDS
from edgellm_tui.markdown.blocks import Outline

SECTIONS: tuple[tuple[str, tuple[tuple[str, str], ...]], ...] = (
    (
        "writing",
        (
            ("enter", "send; in an empty prompt, after a failure: try again"),
            ("ctrl+j shift+enter", "new line (shift+enter where the terminal can tell it from enter)"),
            ("@notes.md", 'the text of that file goes along; @"with spaces.txt"'),
            ("tab", "the rest of a file's name, or of a command"),
            ("up", "in an empty prompt: the last question again"),
            ("esc", "stop the answer, also before it has begun"),
        ),
    ),
    (
        "conversations",
        (
            ("ctrl+n", "a new one"),
            ("ctrl+r", "an earlier one, found by its title or by what was said"),
            ("ctrl+b", "the list at the left"),
            ("ctrl+o", "another model, here or to be fetched"),
            ("f5", "answer the last question again"),
        ),
    ),
    (
        "reading",
        (
            ("pgup pgdn", "scroll; at the bottom it follows the answer again"),
            ("ctrl+home ctrl+end", "to the beginning of what is shown, to the end"),
            ("shift+tab", "to the code blocks; c copies one"),
            ("ctrl+y", "copy the last answer"),
            ("ctrl+t", "show or hide what the model thought"),
        ),
    ),
    (
        "more",
        (
            ("f2", "how answers are made: temperature, instructions, …"),
            ("ctrl+p", "everything, by name; themes too"),
            ("ctrl+q", "leave; all is kept; so does ctrl+d in an empty prompt"),
        ),
    ),
    ("commands", tuple((command.usage, command.meaning) for command in COMMANDS.values())),
)
_KEY = 20


class HelpScreen(ModalScreen[None]):
    CSS_PATH = "help.tcss"
    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape,f1,q,enter", "dismiss", "back", id="help.back")]

    def compose(self) -> ComposeResult:
        with VerticalScroll(id="page") as page:
            page.border_title = "keys"
            page.border_subtitle = "esc back"
            for title, keys in SECTIONS:
                yield Label(title, classes="section")
                rows = [(Content.styled(key.ljust(_KEY), "bold"), Content(meaning)) for key, meaning in keys]
                yield Static(Outline(rows), classes="keys")
