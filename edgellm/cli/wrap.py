"""Lines broken at spaces, for text that arrives in pieces and is shown at once.

The word that turns out to cross the edge is taken back and begun anew on the next line. What may be code, and what has
characters of unknown width, is left to the terminal.
"""

from __future__ import annotations

import unicodedata

_FENCE = "```"
_ERASE = "\x1b[K"  # from the cursor to the end of the line


class Wrap:
    """Where the cursor is in a text that began at the left edge."""

    def __init__(self) -> None:
        self._line = ""  # of the text, as far as it was shown on this line of the screen
        self._word = 0  # characters of its last word
        self._known = True  # the column is known, and the line may be broken
        self._code = False

    def feed(self, text: str, width: int) -> str:
        """What to write so that `text` appears on a terminal of that width."""
        return "".join(self._character(character, width - 1) for character in text)

    def _character(self, character: str, room: int) -> str:
        if character == "\n":
            self._begin(known=not self._code)
            return character
        self._line += character
        if self._line == _FENCE:
            self._code = not self._code
            self._known = False
        elif not _narrow(character) or self._line == "    ":  # four spaces indent code
            self._known = False
        if not self._known:
            return character
        self._word = 0 if character == " " else self._word + 1
        if len(self._line) <= room:
            return character
        if character == " ":
            self._begin(known=True)
            return "\n"
        if self._word == len(self._line):  # one word as long as the line
            self._known = False
            return character
        word = self._line[-self._word :]
        back = len(word) - 1
        self._begin(known=True)
        self._line, self._word = word, len(word)
        return "\b" * back + _ERASE + "\n" + word

    def _begin(self, *, known: bool) -> None:
        self._line, self._word, self._known = "", 0, known


def _narrow(character: str) -> bool:
    """Whether it surely takes one column."""
    if character.isascii():
        return character.isprintable()
    wide = unicodedata.east_asian_width(character) in "WF" or character > "\uffff"
    return not wide and unicodedata.category(character)[0] in "LNPSZ"
