"""Reads the header of a safetensors file without believing it.

Layout: header length (u64, little-endian); header, a JSON object {name: {dtype, shape, data_offsets}} with an optional
"__metadata__" of texts, padded with spaces; data, which the tensors fill without overlap or hole.
Source: https://github.com/huggingface/safetensors#format

The header is walked token by token instead of being handed to a JSON parser: memory stays in proportion to the tensors
that are really there, keys that occur twice are seen, and an error can say in which tensor's entry it is.
"""

from __future__ import annotations

import json
import math
import mmap
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NoReturn

import msgspec

from edgellm.formats.files import bad, mapped

MAX_HEADER: Final = 1 << 25  # bytes; real ones are below 8 MiB
MAX_TENSORS: Final = 1 << 16
MAX_DIMS: Final = 8
MAX_NAME: Final = 1024  # bytes
MAX_ELEMENTS: Final = (1 << 63) - 1

# Bits per element. Types below a byte are packed; a tensor of them must fill whole bytes.
BITS: Final[dict[str, int]] = (
    {"F4": 4, "F6_E2M3": 6, "F6_E3M2": 6}
    | dict.fromkeys(("BOOL", "U8", "I8", "F8_E5M2", "F8_E4M3", "F8_E8M0", "F8_E4M3FNUZ", "F8_E5M2FNUZ"), 8)
    | dict.fromkeys(("U16", "I16", "F16", "BF16"), 16)
    | dict.fromkeys(("U32", "I32", "F32"), 32)
    | dict.fromkeys(("U64", "I64", "F64", "C64"), 64)
)

_LENGTH: Final = 8
_METADATA: Final = "__metadata__"
_FIELDS: Final = ("dtype", "shape", "data_offsets")
# Possessive: a string of megabytes costs no backtracking. Whole numbers only: nothing else occurs.
_TOKEN: Final = re.compile(
    rb'[ \t\r\n]*+(?:("[^"\\\x00-\x1f]*+(?:\\[^\x00-\x1f][^"\\\x00-\x1f]*+)*+")'  # a text
    rb"|([{}\[\]:,])"
    rb"|(-?[0-9]{1,20}(?![0-9.eE])))"
)
_BLANK: Final = re.compile(rb"[ \t\r\n\x00]*+")  # some writers pad with zeros


class SafeTensor(msgspec.Struct, frozen=True):
    """One tensor. `shape` in C order (slowest first), `offset` absolute in its file."""

    name: str
    dtype: str  # "BF16", "F32", …
    shape: tuple[int, ...]
    nbytes: int
    offset: int


class SafetensorsFile(msgspec.Struct, frozen=True):
    """A safetensors file, read and checked. `tensors` in the order of their data."""

    path: Path
    size: int  # bytes
    metadata: dict[str, str]
    tensors: tuple[SafeTensor, ...]


def read_safetensors(path: Path) -> SafetensorsFile:
    """The checked header of the safetensors file at `path`; data is not read.

    Raises BadModelFile naming the file, the field and the value, for a file that is missing, is not a regular file, or
    whose parts do not fit in it.
    """
    with mapped(path, ".safetensors", MAX_HEADER + _LENGTH, _LENGTH + 2) as (data, size):
        # The map holds the longest header there may be.
        length = int.from_bytes(data[:_LENGTH], "little")
        room = min(size - _LENGTH, MAX_HEADER)
        if not 2 <= length <= room:
            hint = "the file is not safetensors, or damaged; files of pickled tensors (.bin, .pt) are never read"
            raise bad(path, "header length", length, f"expected 2 to {room}", hint)
        return _Header(path, data, _LENGTH + length, size).read()


class _Header:
    """One pass over the header, which ends at `end`; data follows it up to `size`."""

    def __init__(self, path: Path, data: mmap.mmap, end: int, size: int) -> None:
        self.path = path
        self.data = data
        self.pos = _LENGTH
        self.end = end
        self.size = size

    def read(self) -> SafetensorsFile:
        metadata: dict[str, str] = {}
        tensors: dict[str, SafeTensor] = {}
        for key in self._keys("header", MAX_TENSORS + 1):
            if key == _METADATA:
                metadata = {name: self._text(f"{_METADATA} {name}") for name in self._keys(_METADATA, MAX_TENSORS)}
            else:
                tensors[key] = self._tensor(key)
        rest = _BLANK.match(self.data, self.pos, self.end)
        if rest is not None and rest.end() != self.end:
            self._bad("header", f"byte {rest.end()}", "something follows the JSON object")
        ordered = sorted(tensors.values(), key=lambda tensor: (tensor.offset, tensor.nbytes))
        self._require_filled(ordered)
        return SafetensorsFile(self.path, self.size, metadata, tuple(ordered))

    def _tensor(self, name: str) -> SafeTensor:
        """The entry of one tensor, held against the file."""
        field = f"tensor {name}"
        if len(name.encode(errors="replace")) > MAX_NAME:
            self._bad("name of a tensor", name, f"longer than {MAX_NAME} bytes")
        dtype = ""
        shape: tuple[int, ...] = ()
        offsets: tuple[int, ...] = ()
        given: set[str] = set()
        for key in self._keys(field, len(_FIELDS)):
            given.add(key)
            if key == "dtype":
                dtype = self._text(f"{field} dtype")
            elif key == "shape":
                shape = self._numbers(f"{field} shape", MAX_DIMS)
            elif key == "data_offsets":
                offsets = self._numbers(f"{field} data_offsets", 2)
            else:
                self._bad(field, key, f"expected {', '.join(_FIELDS)}")
        for key in _FIELDS:
            if key not in given:
                self._bad(f"{field} {key}", "absent", "every tensor has one")
        return self._placed(field, name, dtype, shape, offsets)

    def _placed(
        self, field: str, name: str, dtype: str, shape: tuple[int, ...], offsets: tuple[int, ...]
    ) -> SafeTensor:
        bits = BITS.get(dtype)
        if bits is None:
            self._bad(f"{field} dtype", dtype, "no such type; known are " + ", ".join(BITS), "update edgellm")
        elements = math.prod(shape)
        if elements > MAX_ELEMENTS or any(dim > MAX_ELEMENTS for dim in shape):
            self._bad(f"{field} shape", shape, "its product is more than 2^63 - 1")
        if elements * bits % 8:
            self._bad(f"{field} shape", shape, f"does not fill whole bytes of {dtype}")
        if len(offsets) != 2 or offsets[0] > offsets[1]:
            self._bad(f"{field} data_offsets", offsets, "expected the begin and the end")
        begin, end = offsets
        nbytes = elements * bits // 8
        if end - begin != nbytes:
            self._bad(f"{field} data_offsets", offsets, f"{shape} of {dtype} takes {nbytes} bytes")
        if self.end + end > self.size:
            hint = "the file is cut short or damaged; fetch it again"
            self._bad(f"{field} data_offsets", offsets, f"the data has {self.size - self.end} bytes", hint)
        return SafeTensor(name, dtype, shape, nbytes, self.end + begin)

    def _require_filled(self, ordered: list[SafeTensor]) -> None:
        """Every byte of the data belongs to exactly one tensor."""
        at = self.end
        for tensor in ordered:
            if tensor.offset != at:
                why = (
                    "inside another tensor" if tensor.offset < at else f"nobody's bytes before it, from {at - self.end}"
                )
                self._bad(f"tensor {tensor.name} data_offsets", tensor.offset - self.end, why)
            at += tensor.nbytes
        if at != self.size:
            self._bad("the file", f"{self.size} bytes long", f"its tensors end at byte {at}")

    # JSON, as much of it as there is in a header

    def _keys(self, field: str, most: int) -> Iterator[str]:
        """The keys of an object; whoever takes one reads its value before taking the next."""
        self._sign(field, b"{")
        seen: set[str] = set()
        while True:
            raw, text = self._token(field)
            if raw == b"}" and not seen:
                return
            key = self._decoded(f"a key of {field}", raw, text)
            if key in seen:
                self._bad(field, key, "it occurs twice")
            if len(seen) == most:
                self._bad(field, f"{most + 1} keys or more", f"at most {most}")
            seen.add(key)
            self._sign(f"{field} {key}", b":")
            yield key
            if self._sign(field, b",", b"}") == b"}":
                return

    def _text(self, field: str) -> str:
        return self._decoded(field, *self._token(field))

    def _decoded(self, field: str, raw: bytes, text: bool) -> str:
        if not text:
            self._bad(field, raw, "expected a text")
        try:
            value: str = json.loads(raw) if b"\\" in raw else raw[1:-1].decode()
            value.encode()
        except ValueError:  # not UTF-8, half a surrogate pair, an unknown escape
            self._bad(field, raw, "not a valid text")
        return value

    def _numbers(self, field: str, most: int) -> tuple[int, ...]:
        """An array of at most `most` whole numbers, none negative."""
        self._sign(field, b"[")
        found: list[int] = []
        while True:
            raw, _ = self._token(field)
            if raw == b"]" and not found:
                return ()
            if not raw.isdigit():
                self._bad(field, raw, "expected a whole number, not negative")
            if len(found) == most:
                self._bad(field, f"{most + 1} numbers or more", f"at most {most}")
            found.append(int(raw))
            if self._sign(field, b",", b"]") == b"]":
                return tuple(found)

    def _sign(self, field: str, *signs: bytes) -> bytes:
        raw, text = self._token(field)
        if text or raw not in signs:
            self._bad(field, raw, "expected " + " or ".join(sign.decode() for sign in signs))
        return raw

    def _token(self, field: str) -> tuple[bytes, bool]:
        """The next token, and whether it is a text."""
        found = _TOKEN.match(self.data, self.pos, self.end)
        if found is None:
            self._bad(field, bytes(self.data[self.pos : min(self.pos + 40, self.end)]), "not the JSON of a header")
        self.pos = found.end()
        return found[found.lastindex or 0], found.lastindex == 1

    def _bad(self, field: str, value: object, why: str, hint: str | None = None) -> NoReturn:
        raise bad(self.path, field, value, why, hint)
