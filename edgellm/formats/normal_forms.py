"""Unicode's normal forms in time that grows with the text; and text that is none, made so.

`unicodedata` sorts a letter's marks by insertion: 80,000 of them after one letter take it 8 seconds, in which no other
thread of the process runs. Here long runs of marks are sorted first, which by definition changes no normal form.
Source: Unicode 16.0, section 3.11, "Canonical Ordering Algorithm".
"""

from __future__ import annotations

import re
import unicodedata
from functools import cache
from typing import Final

LONGEST: Final = 32  # marks of one run that are left to `unicodedata`
_FIRST_MARK: Final = 0x300


def valid(text: str) -> str:
    """Text that has a UTF-8 form: halves of surrogate pairs are joined, single ones replaced."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    return text


def composed(text: str) -> str:
    """NFC."""
    return unicodedata.normalize("NFC", _sorted(text))


def decomposed(text: str) -> str:
    """NFD."""
    return unicodedata.normalize("NFD", _sorted(text))


def _sorted(text: str) -> str:
    return text if text.isascii() else _long_runs().sub(_in_order, text)


def _in_order(run: re.Match[str]) -> str:
    marks = "".join(unicodedata.normalize("NFD", mark) for mark in run[0])
    return "".join(sorted(marks, key=unicodedata.combining))


@cache
def _long_runs() -> re.Pattern[str]:
    """Of characters that are marks, or become nothing but marks. There are none beyond the first two planes."""
    marks = "".join(chr(code) for code in range(_FIRST_MARK, 0x20000) if is_mark(chr(code)))
    return re.compile(f"[{marks}]{{{LONGEST + 1},}}")


def is_mark(character: str) -> bool:
    """Whether it moves when marks are brought into order, or begins with one that does."""
    return unicodedata.combining(unicodedata.normalize("NFD", character)[0]) != 0
