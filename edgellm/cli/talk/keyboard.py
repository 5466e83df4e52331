"""Reads what a person types: history, several lines, pasted text as one message."""

from __future__ import annotations

import contextlib
import os
import re
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from prompt_toolkit import PromptSession
from prompt_toolkit.completion import WordCompleter
from prompt_toolkit.history import FileHistory
from prompt_toolkit.key_binding import KeyBindings
from prompt_toolkit.output import create_output
from prompt_toolkit.shortcuts import CompleteStyle
from prompt_toolkit.styles import Style

from edgellm import platform
from edgellm.cli.terminal import is_terminal
from edgellm.small_files import open_regular

if TYPE_CHECKING:
    from prompt_toolkit.key_binding import KeyPressEvent

QUOTES = '"""'
_PROMPT, _MORE = "> ", "… "
_HISTORY_LIMIT = 1 << 20  # bytes; an older half is dropped beyond
_STYLE = Style.from_dict({"prompt": "bold", "more": "ansibrightblack", "placeholder": "ansibrightblack"})


class Keyboard:
    """Reads messages from the terminal. What it draws goes to stderr where stdout holds the answers of a pipe."""

    def __init__(self, history: Path, words: Sequence[str]) -> None:
        """`history` is a file; `words` are completed with Tab."""
        self._session: PromptSession[str] = PromptSession(
            [("class:prompt", _PROMPT)],
            multiline=True,
            prompt_continuation=[("class:more", _MORE)],
            history=History(history),
            enable_history_search=True,
            completer=WordCompleter(list(words), sentence=True),
            complete_while_typing=False,
            complete_style=CompleteStyle.READLINE_LIKE,
            reserve_space_for_menu=0,
            key_bindings=_keys(),
            style=_STYLE,
            output=create_output(stdout=sys.stdout if is_terminal(sys.stdout) else sys.stderr),
        )

    def read(self, hint: str = "") -> str:
        """The next message; `hint` is shown until something is typed.

        Raises EOFError for Ctrl+D, KeyboardInterrupt for Ctrl+C, both on an empty line.
        """
        return unquoted(self._session.prompt(placeholder=[("class:placeholder", hint)]))


class History(FileHistory):
    """A file of this user's alone. A message that begins with a space is not kept; no failure to write is one."""

    def __init__(self, file: Path) -> None:
        super().__init__(str(file))
        self._file = file
        with contextlib.suppress(OSError):
            if file.exists():
                _shorten(file)
            else:
                platform.open_private_log(file).close()

    def load_history_strings(self) -> Iterable[str]:
        try:
            return list(super().load_history_strings()) if self._file.is_file() else []  # a pipe would block
        except OSError:
            return []

    def store_string(self, string: str) -> None:
        if not string.startswith(" ") and self._file.is_file():
            with contextlib.suppress(OSError):
                super().store_string(string)


def quoted(text: str) -> bool:
    """Whether a block in triple quotes is open."""
    body = text.lstrip()
    return body.startswith(QUOTES) and (len(body) < 2 * len(QUOTES) or not body.rstrip().endswith(QUOTES))


def unquoted(text: str) -> str:
    """What a block in triple quotes holds; other text as it is."""
    body = text.strip()
    if body.startswith(QUOTES) and not quoted(body):
        return re.sub(r"\A[ \t]*\n|\n[ \t]*\Z", "", body[len(QUOTES) : -len(QUOTES)])
    return text


def _keys() -> KeyBindings:
    keys = KeyBindings()

    @keys.add("enter")
    def _(event: KeyPressEvent) -> None:
        buffer = event.current_buffer
        if quoted(buffer.text):
            buffer.insert_text("\n")
        else:
            buffer.validate_and_handle()

    @keys.add("c-j")
    @keys.add("escape", "enter")
    def _(event: KeyPressEvent) -> None:
        event.current_buffer.insert_text("\n")

    @keys.add("c-c")
    def _(event: KeyPressEvent) -> None:
        if event.current_buffer.text:
            event.current_buffer.reset()
        else:
            event.app.exit(exception=KeyboardInterrupt(), style="class:aborting")

    return keys


def _shorten(file: Path) -> None:
    if file.stat().st_size > _HISTORY_LIMIT:
        with open_regular(file) as opened:
            opened.seek(-(_HISTORY_LIMIT // 2), os.SEEK_END)
            kept = opened.read(_HISTORY_LIMIT)
        platform.write_private(file, kept[kept.find(b"\n\n# ") + 1 :])
