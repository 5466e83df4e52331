"""What tab adds in the prompt: the rest of a command's name, or of a file's that `@` names."""

from __future__ import annotations

import os
import re
from itertools import islice, takewhile

import msgspec

from edgellm.paths import expanded
from edgellm_tui.commands import COMMANDS

_COMMAND = re.compile(r"/[a-z]*\Z")
_MENTION = re.compile(r'(?<!\S)@(?:"([^"\n]*)|([^\s"]*))\Z')
_MOST = 10_000  # entries of a folder that are looked at


class Completion(msgspec.Struct, frozen=True):
    text: str  # what stands before the cursor now
    choices: tuple[str, ...] = ()  # how it may go on, where it is not clear


def completed(before: str) -> Completion | None:
    """What stands before the cursor, completed as far as it is clear; None where there is nothing to complete.

    Blocks while it reads a folder.
    """
    if _COMMAND.match(before):
        return _command(before)
    found = _MENTION.search(before)
    if found is None:
        return None
    quoted = found[1] is not None
    folder, slash, begun = (found[1] if quoted else found[2]).rpartition("/")
    names = _entries(folder + slash, begun)
    if not names:
        return Completion(before)
    whole = folder + slash + _common(names)
    word = f'@"{whole}' if quoted or re.search(r"\s", whole) else f"@{whole}"
    if len(names) == 1 and not whole.endswith("/"):
        word += '" ' if word.startswith('@"') else " "
    return Completion(before[: found.start()] + word, tuple(names) if len(names) > 1 else ())


def _command(begun: str) -> Completion:
    names = sorted(name for name in COMMANDS if name.startswith(begun))
    if len(names) != 1:
        return Completion(_common(names) or begun, tuple(names))
    takes = COMMANDS[names[0]].usage != names[0]
    return Completion(names[0] + (" " if takes else ""))


def _common(names: list[str]) -> str:
    """What all begin with."""
    same = takewhile(lambda letters: len(set(letters)) == 1, zip(*names, strict=False))
    return "".join(letters[0] for letters in same)


def _entries(folder: str, begun: str) -> list[str]:
    """What is in that folder and begins so, folders with a slash; hidden ones only where a dot was typed."""
    try:
        with os.scandir(expanded(folder or ".")) as entries:
            return sorted(
                entry.name + ("/" if entry.is_dir() else "")
                for entry in islice(entries, _MOST)
                if entry.name.startswith(begun)
                and (begun.startswith(".") or not entry.name.startswith("."))
                and entry.name.isprintable()
                and '"' not in entry.name
            )
    except (OSError, ValueError):  # none, or a name that no system takes
        return []
