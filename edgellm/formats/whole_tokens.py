"""Tokens that stand in text as a whole: control tokens, and those a model's authors added as they are.

Found as llama.cpp finds them, but in time that grows with the text and not with its square times the vocabulary.
Source: `tokenizer_st_partition` in llama-vocab.cpp of llama.cpp.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from typing import Final

SPACES: Final = " \t\n\v\f\r"  # that tokens may take with them


class WholeTokens:
    """Finds `tokens`, given as (id, text). Where two overlap, the longer one (in bytes) is it, wherever it begins.

    strips_before, strips_after    ids of those that take the spaces before or after them with them
    """

    def __init__(
        self,
        tokens: Iterable[tuple[int, bytes]],
        strips_before: Collection[int] = (),
        strips_after: Collection[int] = (),
    ) -> None:
        self._before, self._after = strips_before, strips_after
        self._by_text: dict[str, tuple[int, int]] = {}  # rank, id
        self._counts: dict[str, dict[int, int]] = {}  # how many begin with a character and have a length
        for rank, (number, token) in enumerate(sorted(tokens, key=lambda one: -len(one[1]))):
            try:
                text = token.decode()
            except UnicodeDecodeError:
                continue  # no text contains it
            if not text:
                continue
            self._by_text[text] = (rank, number)
            counts = self._counts.setdefault(text[0], {})
            counts[len(text)] = counts.get(len(text), 0) + 1
        self._firsts = re.compile("[" + re.escape("".join(self._counts)) + "]") if self._counts else None

    def cut(self, text: str) -> list[str | int]:
        """Text and tokens in turn; no text is empty."""
        parts: list[str | int] = [text]
        for _, token, name in sorted(self._present(text)):
            cut: list[str | int] = []
            for part in parts:
                if isinstance(part, int) or name not in part:
                    cut.append(part)
                    continue
                first, *others = self._between(part.split(name), token)
                cut.append(first)
                for other in others:
                    cut += (token, other)
            parts = cut
        return [part for part in parts if part != ""]

    def _between(self, texts: list[str], token: int) -> list[str]:
        if token in self._before:
            texts = [*(text.rstrip(SPACES) for text in texts[:-1]), texts[-1]]
        if token in self._after:
            texts = [texts[0], *(text.lstrip(SPACES) for text in texts[1:])]
        return texts

    def _present(self, text: str) -> list[tuple[int, int, str]]:
        """(rank, id, text) of every token that occurs. Once all of a length are known, none of it is looked for."""
        found: dict[str, tuple[int, int, str]] = {}
        missing: dict[str, dict[int, int]] = {}
        for match in self._firsts.finditer(text) if self._firsts else ():
            start, first = match.start(), match[0]
            if first not in missing:
                missing[first] = dict(self._counts[first])
            for length in tuple(missing[first]):
                name = text[start : start + length]
                known = self._by_text.get(name)
                if known is not None and name not in found:
                    found[name] = (*known, name)
                    missing[first][length] -= 1
                    if not missing[first][length]:
                        del missing[first][length]
        return list(found.values())
