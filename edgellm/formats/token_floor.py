"""How few tokens a text can be, without tokenising it: what cannot fit a context is refused at once.

Each byte is given the weight 1 / (length of the longest token that holds such a byte). The bytes of a token then weigh
1 at most together; so a text has at least as many tokens as all its bytes weigh. What a tokenizer may drop weighs
nothing.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Final

from edgellm.errors import BadModelFile
from edgellm.formats.vocabulary import BYTE, CONTROL, SPACE, UNKNOWN, Vocabulary, read_vocabulary
from edgellm.formats.whole_tokens import SPACES

_WITHOUT_SPACES: Final = str.maketrans("", "", SPACES)


class TokenFloor:
    """Of byte-level BPE and SentencePiece's BPE. Of other tokenizers nothing is said: WordPiece makes one token of a
    word that it does not know, however long; Unigram drops characters.

    strips      some tokens take the spaces beside them with them
    """

    def __init__(self, vocabulary: Vocabulary, *, strips: bool = False) -> None:
        self._strips = strips
        self._spaced = vocabulary.model == "llama"
        lengths = _byte_level(vocabulary) if vocabulary.model == "gpt2" else _sentencepiece(vocabulary)
        used = sorted({length for length in lengths if length})
        self._classes = [(bytes([number]), length) for number, length in enumerate(used)]
        self._class_of = bytes(used.index(length) if length else len(used) for length in lengths)

    def of(self, text: str) -> int:
        """`text` is whole characters, normalised as the tokenizer has it. Some 10 ms for a megabyte."""
        if self._strips:
            text = text.translate(_WITHOUT_SPACES)
        if self._spaced:
            text = text.replace(" ", SPACE)
        classes = text.encode().translate(self._class_of)
        return int(sum(classes.count(name) / length for name, length in self._classes) * (1 - 1e-9))


def token_floor(path: Path, *, strips: bool = False) -> TokenFloor | None:
    """From the vocabulary in a file. None where that is not possible.

    It is read again: few prompts are so long, and lists of merges are large.
    """
    try:
        return TokenFloor(read_vocabulary(path), strips=strips)
    except BadModelFile:  # another than llama.cpp takes, or gone meanwhile
        return None


def _byte_level(vocabulary: Vocabulary) -> list[int]:
    """By byte, the length of the longest token that has it; 0 where a text's byte may get lost."""
    tokens = dict(zip(vocabulary.tokens, vocabulary.types, strict=True))
    lengths = _longest([*map(_from_letters, tokens), *tokens])  # as letters for bytes, or as they are
    lost = {byte for letter, byte in LETTERS.items() if tokens.get(letter.encode(), BYTE) in (CONTROL, UNKNOWN, BYTE)}
    for merge in vocabulary.merges:
        cut = merge.find(b" ", 1)
        if cut > 0 and (union := merge[:cut] + merge[cut + 1 :]) not in tokens:
            lost |= {*_from_letters(union)}  # llama.cpp merges and then finds no token
    return [0 if byte in lost else length for byte, length in enumerate(lengths)]


def _sentencepiece(vocabulary: Vocabulary) -> list[int]:
    tokens = set(vocabulary.tokens)
    if vocabulary.model != "llama" or not all(b"<0x%02X>" % byte in tokens for byte in range(256)):
        return [0] * 256
    return _longest(token.replace(b" ", SPACE.encode()) for token in tokens)


def _longest(tokens: Iterable[bytes]) -> list[int]:
    found = [1] * 256
    seen: set[int] = set()
    for token in sorted(tokens, key=len, reverse=True):
        new = set(token) - seen
        for byte in new:
            found[byte] = len(token)
        seen |= new
    return found


def _letters() -> dict[str, int]:
    """GPT-2's letters for bytes: the printable ones stand for themselves, the others for those from U+0100 on."""
    plain = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in plain]
    return {chr(byte): byte for byte in plain} | {chr(256 + number): byte for number, byte in enumerate(others)}


LETTERS: Final = _letters()


def _from_letters(token: bytes) -> bytes:
    """The bytes whose letters are in `token`."""
    return bytes(LETTERS[letter] for letter in token.decode("utf-8", "replace") if letter in LETTERS)
