"""Words that come again are not cut again: most of a text are."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

_LONGEST: Final = 40  # characters of a word that is remembered
_MOST: Final = 1 << 16  # words


class WordMemory:
    """What `cut` makes of words."""

    def __init__(self, cut: Callable[[str], list[int]]) -> None:
        self._cut = cut
        self._known: dict[str, list[int]] = {}

    def ids(self, words: Iterable[str]) -> list[int]:
        """The token ids of all of them, in order."""
        found: list[int] = []
        for word in words:
            ids = self._known.get(word)
            if ids is None:
                ids = self._cut(word)
                if len(word) <= _LONGEST:
                    if len(self._known) >= _MOST:
                        self._known = {}
                    self._known[word] = ids
            found += ids
        return found
