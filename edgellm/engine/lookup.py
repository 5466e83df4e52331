"""Prompt lookup: guess that the text goes on as it did after the same tokens before.

Saxena, "Prompt Lookup Decoding", 2023.
Costs no model and next to no time; comes true where answers repeat their prompt: edits, quotations, code, tables.
"""

from __future__ import annotations

NGRAM = 3  # tokens that must be equal before a guess is worth looking at
LONGEST_MATCH = 32  # more equal tokens say nothing more


class PromptLookup:
    """An index of every n-gram of one growing text."""

    def __init__(self) -> None:
        self._ends: dict[tuple[int, ...], int] = {}  # n-gram -> where its latest occurrence ends
        self._indexed = 0  # tokens whose n-grams are known

    def propose(self, tokens: list[int], most: int) -> tuple[list[int], int]:
        """Up to `most` tokens that followed the end of `tokens` when it was there last, and how many were equal."""
        self._index(tokens)
        end = self._ends.get(tuple(tokens[-NGRAM:]))
        if end is None or most <= 0:
            return [], 0
        matched = NGRAM
        while matched < LONGEST_MATCH and matched < end and tokens[end - matched - 1] == tokens[-matched - 1]:
            matched += 1
        guess = tokens[end : end + most]
        while len(guess) < most:  # what was found reaches to the end: a text that repeats itself goes on doing so
            guess += guess[: most - len(guess)]
        return guess, matched

    def restart(self) -> None:
        """The text changed before its end."""
        self._ends.clear()
        self._indexed = 0

    def _index(self, tokens: list[int]) -> None:
        """Every n-gram but the last: that one would find itself."""
        ends = self._ends
        for end in range(max(self._indexed, NGRAM), len(tokens)):
            ends[tuple(tokens[end - NGRAM : end])] = end
        self._indexed = max(self._indexed, len(tokens))
