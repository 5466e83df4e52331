"""BERT's tokenizer: text is made plain, cut into words, and each word into the longest tokens from the left.

What counts as a word, and what is dropped, is as our llama.cpp engine has it, but for characters younger than this
Python's Unicode tables.
Source: Devlin et al., "BERT", 2018; Schuster and Nakajima, "Japanese and Korean Voice Search", 2012; llama-vocab.cpp.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Mapping
from typing import Final

from edgellm.formats.normal_forms import decomposed
from edgellm.formats.vocabulary import SPACE
from edgellm_torch.words import WordMemory

_SPACES: Final = frozenset("\t\n\v\f\r \u0085\u00a0\u1680\u2028\u2029\u202f\u205f\u3000") | frozenset(
    map(chr, range(0x2000, 0x200B))
)
_CHINESE: Final = (
    *((0x3400, 0x4DBF), (0x4E00, 0x9FFF), (0xF900, 0xFAFF), (0x20000, 0x2A6DF), (0x2A700, 0x2B73F)),
    *((0x2B740, 0x2B81F), (0x2B920, 0x2CEAF), (0x2F800, 0x2FA1F)),
)


class WordPiece:
    """Cuts over one vocabulary.

    ids         the tokens that text may become
    unknown     stands for a word that no tokens make up; None: nothing does
    bare        letters lose their accents
    """

    def __init__(self, ids: Mapping[str, int], unknown: int | None, *, lowercase: bool, bare: bool) -> None:
        self._ids = ids
        self._unknown = [] if unknown is None else [unknown]
        self._bare = bare
        self._plain = _Plain(lowercase, bare)
        lengths: dict[str, set[int]] = {}
        for text in ids:
            lengths.setdefault(text[0], set()).add(len(text))
        self._lengths = {first: sorted(found, reverse=True) for first, found in lengths.items()}
        self._memory = WordMemory(lambda word: self._pieces(SPACE + word))

    def encode(self, text: str) -> list[int]:
        if self._bare:
            text = decomposed(text)
        return self._memory.ids(text.translate(self._plain).split())

    def _pieces(self, word: str) -> list[int]:
        """All of the word, or nothing of it."""
        found: list[int] = []
        start = 0
        while start < len(word):
            for length in self._lengths.get(word[start], ()):
                end = start + length
                token = self._ids.get(word[start:end]) if end <= len(word) else None
                if token is not None:
                    found.append(token)
                    start = end
                    break
            else:
                return self._unknown
        return found


class _Plain(dict[int, str]):
    """For `str.translate`: what becomes of each character, found out when it comes."""

    def __init__(self, lowercase: bool, bare: bool) -> None:
        super().__init__()
        self._lowercase, self._bare = lowercase, bare

    def __missing__(self, code: int) -> str:
        character = chr(code)
        if self._bare and unicodedata.category(character) == "Mn":
            made = ""
        else:
            # Letter by letter: a sigma at a word's end stays a plain one.
            made = "".join(map(_parted, character.lower() if self._lowercase else character))
        self[code] = made
        return made


def _parted(character: str) -> str:
    """Spaces part words; marks, symbols of ASCII and Chinese characters are words of their own."""
    if character in _SPACES:
        return " "
    category, code = unicodedata.category(character), ord(character)
    if category in ("Cc", "Cf", "Cs", "Co") or code == 0xFFFD:
        return ""
    alone = category[0] == "P" or (code < 0x7F and category[0] == "S")
    if alone or any(first <= code <= last for first, last in _CHINESE):
        return f" {character} "
    return character
