"""The vocabulary of a GGUF file: what `read_model` only walks over. Read when a tokenizer is built, and only then.

Every count and length was checked against the file before anything here is read; the lists are checked against each
other. What the values mean, which defaults apply and how text is cut is the tokenizer's affair.
Source: the GGUF specification, "Tokenizer", and llama-vocab.cpp of llama.cpp, for which files are written.
"""

from __future__ import annotations

import math
import mmap
import struct
from pathlib import Path
from struct import Struct
from typing import Any, Final, NoReturn

import msgspec

from edgellm.formats.files import bad, mapped
from edgellm.formats.gguf import MAX_HEADER, read_keys
from edgellm.formats.gguf_cursor import STRINGS, Cursor, Stretch

MAX_TOKENS: Final = 1 << 20  # four times the largest known; bounds memory
MAX_MERGES: Final = 1 << 22
LARGEST_TOKEN: Final = 1 << 16  # bytes

# Kinds of tokens
UNDEFINED: Final = 0
NORMAL: Final = 1
UNKNOWN: Final = 2
CONTROL: Final = 3
USER_DEFINED: Final = 4
UNUSED: Final = 5
BYTE: Final = 6

SPACE: Final = "\u2581"  # stands for a space in SentencePiece's tokens, and begins a word in llama.cpp's WordPiece

_I32: Final = 5  # value types
_F32: Final = 6
_LEAST: Final = 24
_U64: Final = Struct("<Q")
_PREFIX: Final = "tokenizer.ggml."
_ROLE: Final = "_token_id"
_HINT: Final = "the tokenizer is damaged; fetch the file again, or get another conversion of the model"


class Vocabulary(msgspec.Struct, frozen=True, kw_only=True):
    """A tokenizer as its file has it. Token ids are positions in the lists.

    model     the algorithm: "gpt2" is byte-level BPE, "llama" SentencePiece's BPE, "bert" WordPiece
    pre       how text is cut into words before it, by llama.cpp's name; "" where the file does not say
    tokens    as stored: bytes that need not be UTF-8. None is empty, none occurs twice.
    types     NORMAL, CONTROL …; all NORMAL where the file does not say
    scores    all 0.0 where the file has none
    merges    pairs, the first to be merged first, each written with a space between
    roles     tokens by what they are for ("bos", "eos", "eot" …); only those of the vocabulary
    keys      the other short values under "tokenizer.", by their whole names
    """

    path: Path
    architecture: str
    model: str
    pre: str
    tokens: list[bytes]
    types: list[int]
    scores: list[float]
    merges: list[bytes]
    roles: dict[str, int]
    keys: dict[str, Any]

    def flag(self, name: str) -> bool | None:
        """A yes or no under "tokenizer.ggml."; None where the file does not say. Raises BadModelFile."""
        value = self.keys.get(_PREFIX + name)
        if value is not None and type(value) is not bool:
            raise bad(self.path, _PREFIX + name, value, "expected yes or no", _HINT)
        return value

    @property
    def chat_template(self) -> str | None:
        value = self.keys.get("tokenizer.chat_template")
        return value if isinstance(value, str) and value else None


def read_vocabulary(path: Path) -> Vocabulary:
    """The vocabulary of the GGUF file at `path` (of a split model: its first part).

    Raises BadModelFile as `read_model` does, and for a file without a vocabulary or with lists that do not agree.
    """
    with mapped(path, ".gguf", MAX_HEADER, _LEAST) as (data, size):
        cursor = Cursor(path, data, min(size, MAX_HEADER))
        keys = read_keys(cursor, size)
        return _Reader(path, data, keys, cursor.arrays).read()


class _Reader:
    """The arrays of one header, which lie where `arrays` says."""

    def __init__(self, path: Path, data: bytes | mmap.mmap, keys: dict[str, Any], arrays: dict[str, Stretch]) -> None:
        self.path = path
        self.data = data
        self.keys = keys
        self.arrays = arrays

    def read(self) -> Vocabulary:
        model = self._text("model")
        if not model:
            self._bad("model", "absent", "the file has no tokenizer")
        tokens = self._tokens()
        count = len(tokens)
        types = self._numbers("token_type", count, (_I32,)) or [NORMAL] * count
        scores = [float(score) for score in self._numbers("scores", count, (_F32, _I32))] or [0.0] * count
        if not all(map(math.isfinite, scores)):
            self._bad("scores", "not a number", "expected finite numbers")
        architecture = self.keys.get("general.architecture")
        return Vocabulary(
            path=self.path,
            architecture=architecture if isinstance(architecture, str) else "",
            model=model,
            pre=self._text("pre"),
            tokens=tokens,
            types=[kind if NORMAL <= kind <= BYTE else UNDEFINED for kind in types],
            scores=scores,
            merges=self._strings("merges", MAX_MERGES),
            roles=self._roles(count),
            keys={key: value for key, value in self.keys.items() if key.startswith("tokenizer.")},
        )

    def _tokens(self) -> list[bytes]:
        if _PREFIX + "tokens" not in self.arrays:
            self._bad("tokens", "absent", "the file has no vocabulary")
        tokens = self._strings("tokens", MAX_TOKENS)
        if not tokens:
            self._bad("tokens", "empty", "the file has no vocabulary")
        if max(map(len, tokens)) > LARGEST_TOKEN:
            self._bad("tokens", "a token of over 64 KiB", f"at most {LARGEST_TOKEN} bytes")
        tokens = [token or b"[EMPTY_%d]" % number for number, token in enumerate(tokens)]
        if len(set(tokens)) < len(tokens):
            self._refuse_twin(tokens)
        return tokens

    def _refuse_twin(self, tokens: list[bytes]) -> NoReturn:
        first: dict[bytes, int] = {}
        for number, token in enumerate(tokens):
            if first.setdefault(token, number) != number:
                text = token.decode("utf-8", "replace")
                self._bad(f"token {number}", text, f"token {first[token]} is the same")
        raise AssertionError("no two are the same")

    def _strings(self, name: str, most: int) -> list[bytes]:
        """An array of strings; empty where there is none."""
        at = self.arrays.get(_PREFIX + name)
        if at is None:
            self._refuse_scalar(name)
            return []
        if at.kind != STRINGS:
            self._bad(name, f"an array of type {at.kind}", "expected strings")
        if at.items > most:
            self._bad(f"length of {name}", at.items, f"at most {most}")
        # A copy: slices of bytes are several times faster than those of a map.
        return _split(self.data[at.start : at.end], at.items)

    def _numbers(self, name: str, count: int, kinds: tuple[int, ...]) -> list[Any]:
        """The first `count` of an array of numbers; empty where there is none."""
        at = self.arrays.get(_PREFIX + name)
        if at is None:
            self._refuse_scalar(name)
            return []
        if at.kind not in kinds:
            self._bad(name, f"an array of type {at.kind}", f"expected {' or '.join(_NAMES[kind] for kind in kinds)}")
        if at.items < count:
            self._bad(f"length of {name}", at.items, f"there are {count} tokens")
        form = f"<{count}{'f' if at.kind == _F32 else 'i'}"
        return list(struct.unpack_from(form, self.data[at.start : at.start + 4 * count]))

    def _roles(self, count: int) -> dict[str, int]:
        """Those beyond the vocabulary count as not said, as they do for llama.cpp."""
        roles: dict[str, int] = {}
        for key, value in self.keys.items():
            if key.startswith(_PREFIX) and key.endswith(_ROLE):
                name = key[len(_PREFIX) : -len(_ROLE)]
                if type(value) is not int:
                    self._bad(name + _ROLE, value, "expected the number of a token")
                if 0 <= value < count:
                    roles[name] = value
        return roles

    def _text(self, name: str) -> str:
        value = self.keys.get(_PREFIX + name, "")
        if not isinstance(value, str):
            self._bad(name, value, "expected a name")
        return value

    def _refuse_scalar(self, name: str) -> None:
        if _PREFIX + name in self.keys:
            self._bad(name, self.keys[_PREFIX + name], "expected an array")

    def _bad(self, field: str, value: object, why: str) -> NoReturn:
        front, gap, name = field.rpartition(" ")  # "length of tokens": the key is its last word
        named = field if field.startswith("token ") else f"{front}{gap}{_PREFIX}{name}"
        raise bad(self.path, named, value, why, _HINT)


_NAMES: Final = {_I32: "32-bit integers", _F32: "32-bit floats"}


def _split(data: bytes, count: int) -> list[bytes]:
    """`count` strings, each after its length; the walk over the header has checked that they are there."""
    found: list[bytes] = []
    add, length, pos = found.append, _U64.unpack_from, 0
    for _ in range(count):
        end = pos + 8 + length(data, pos)[0]
        add(data[pos + 8 : end])
        pos = end
    return found
