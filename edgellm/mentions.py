"""Files that a question names: `@notes.md`, or `@"with spaces.txt"`. Their text goes along, below the question."""

from __future__ import annotations

import re
from pathlib import Path

from edgellm.errors import InvalidRequest
from edgellm.inert import label
from edgellm.paths import expanded
from edgellm.small_files import read_small, why
from edgellm.units import MIB

_MENTION = re.compile(r'(?<!\S)@(?:"([^"\n]+)"|(\S+))')
_ENDINGS = ".,;:!?)]}'\"…"
_LOOKS_LIKE_ONE = re.compile(r"[/\\]|\.[A-Za-z][A-Za-z0-9]{0,7}\Z")
_LARGEST = 4 * MIB  # bytes of one file: more than any context takes


def with_files(text: str) -> str:
    """The question, followed by the files it names. What names no file stays what it is: an address, a handle.

    Blocks while it reads. Raises InvalidRequest for a file that is no text, or is too large.
    """
    blocks = []
    for found in _MENTION.finditer(text):
        name = found[1] or _named(found[2])
        path = expanded(name)
        if _is_file(path):
            blocks.append(_block(name, _read(path)))
    return "\n\n".join([text, *blocks])


def there(text: str) -> list[str]:
    """Names after an `@` that are files', once each. Blocks."""
    names = dict.fromkeys(found[1] or _named(found[2]) for found in _MENTION.finditer(text))
    return [name for name in names if _is_file(expanded(name))]


def missing(text: str) -> list[str]:
    """Names after an `@` that look like a file's where there is none to go along: mistyped, or a folder's; once each.

    Blocks.
    """
    names = dict.fromkeys(found[1] or _named(found[2]) for found in _MENTION.finditer(text))
    return [
        name for name in names if not _is_file(expanded(name)) and (_LOOKS_LIKE_ONE.search(name) or _is_folder(name))
    ]


def _named(word: str) -> str:
    """The file that a word names: what ends a sentence or a bracket is no part of it, unless there is such a file."""
    bare = word.rstrip(_ENDINGS)
    return bare if bare and not _is_file(expanded(word)) else word


def _is_file(path: Path) -> bool:
    """Whether it is a regular file: a device would have no end, and a pipe might never begin."""
    try:
        return path.is_file()
    except (OSError, ValueError):  # a name that no system takes
        return False


def _is_folder(name: str) -> bool:
    try:
        return expanded(name).is_dir() and name != "."
    except (OSError, ValueError):
        return False


def _read(path: Path) -> str:
    name = label(path.name, 60)
    try:
        return read_small(path, _LARGEST).decode("utf-8-sig").replace("\r\n", "\n").rstrip("\n")
    except OSError as error:
        raise InvalidRequest(f"{name} cannot be read: {why(error)}", hint="mend that, or leave it out") from error
    except UnicodeDecodeError as error:
        raise InvalidRequest(
            f"{name} is no text in UTF-8", hint="name a text file; pictures cannot be read yet"
        ) from error


def _block(name: str, text: str) -> str:
    """Fenced, with more marks than the text has in a row."""
    fence = "`" * max(3, 1 + max(map(len, re.findall("`+", text)), default=0))
    return f"{name}:\n{fence}\n{text}\n{fence}"
