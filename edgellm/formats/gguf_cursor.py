"""Values of a GGUF header, read one after the other: each is checked to lie in the file before it is followed.

The data may be a whole file or its beginning, fetched from elsewhere: what would lie in the file but beyond the data
raises Short, so that whoever has the beginning can get more of it.
"""

from __future__ import annotations

import mmap
import struct
from pathlib import Path
from struct import Struct
from typing import Any, Final, NamedTuple, NoReturn

from edgellm.formats.files import bad, shown

KEPT_STRINGS: Final = 64  # longer arrays of strings are vocabularies: walked, not kept
KEPT_NUMBERS: Final = 1024  # longer arrays of numbers too; per-layer tables are shorter
MAX_KEY: Final = 65_535  # bytes, from the specification
MAX_WALKED: Final = 1 << 22  # strings over all arrays: bounds the time a hostile file can take
MAX_KEPT: Final = 1 << 16  # values in kept arrays, all together; this and the next bound memory
MAX_KEPT_BYTES: Final = 1 << 25  # of strings kept in metadata

_U32: Final = Struct("<I")
_U64: Final = Struct("<Q")
_SCALARS: Final[dict[int, Struct]] = {
    0: Struct("<B"),
    1: Struct("<b"),
    2: Struct("<H"),
    3: Struct("<h"),
    4: _U32,
    5: Struct("<i"),
    6: Struct("<f"),
    10: _U64,
    11: Struct("<q"),
    12: Struct("<d"),
}
_BOOL: Final = 7
_STRING: Final = 8
_ARRAY: Final = 9
STRINGS: Final = _STRING  # the kind of an array of strings


class Stretch(NamedTuple):
    """Where an array's values lie: `items` of them, of a value type by number, in the bytes from `start` to `end`."""

    kind: int
    items: int
    start: int
    end: int

    @property
    def width(self) -> int:
        """Bytes of one value; 0 for strings, whose lengths differ."""
        return 0 if self.kind == _STRING else 1 if self.kind == _BOOL else _SCALARS[self.kind].size


class Short(Exception):
    """The header goes on beyond the data. `total` bytes of the file, from its start, are needed to get further."""

    def __init__(self, total: int) -> None:
        super().__init__(total)
        self.total = total


class Cursor:
    """`pos` is the next byte, `have` the end of the data, `end` that of the longest header the file can hold.

    `arrays` says where each array of the metadata lies, kept or only walked.
    """

    def __init__(self, path: Path, data: bytes | mmap.mmap, end: int) -> None:
        self.path = path
        self.data = data
        self.pos = 0
        self.have = min(len(data), end)
        self.end = end
        self.arrays: dict[str, Stretch] = {}
        self._walked = 0
        self._kept_values = 0
        self._kept_bytes = 0

    # Keys and values

    def metadata(self, count: int) -> dict[str, Any]:
        """`count` keys with their values; without the arrays that are only walked."""
        found: dict[str, Any] = {}
        seen: set[str] = set()
        for index in range(count):
            key = self.name(f"key {index}", MAX_KEY)
            if key in seen:
                self.bad(f"key {index}", key, "it occurs twice")
            seen.add(key)
            kind = self.u32(f"type of {key}")
            value = self._array(key) if kind == _ARRAY else self._scalar(kind, key)
            if value is not None:
                found[key] = value
        return found

    def _scalar(self, kind: int, key: str) -> Any:
        if kind == _STRING:
            return self._string(key)
        if kind == _BOOL:
            self._need(1, key)
            self.pos += 1
            return self.data[self.pos - 1] != 0
        form = _SCALARS.get(kind)
        if form is None:
            self.bad(f"type of {key}", kind, "no such value type")
        return self._unpack(form, key)

    def _array(self, key: str) -> list[Any] | None:
        """The values of a short array; None for one that is only walked."""
        kind, count = self.u32(f"type of {key}"), self.u64(f"length of {key}")
        form = _SCALARS.get(kind)
        if kind == _ARRAY:
            self.bad(f"type of {key}", kind, "arrays of arrays are not supported")
        if kind not in (_BOOL, _STRING) and form is None:
            self.bad(f"type of {key}", kind, "no such value type")
        width = 8 if kind == _STRING else 1 if form is None else form.size
        room = (self.end - self.pos) // width
        if count > room:
            self.bad(f"length of {key}", count, f"there is room for {room}")
        start = self.pos
        values = self._values(key, kind, count, width)
        self.arrays[key] = Stretch(kind, count, start, self.pos)
        return values

    def _values(self, key: str, kind: int, count: int, width: int) -> list[Any] | None:
        if kind == _STRING and count > KEPT_STRINGS:
            self._walk_strings(key, count)
            return None
        if count > KEPT_NUMBERS:
            self.pos += count * width
            return None
        self._kept_values += count
        if self._kept_values > MAX_KEPT:
            self.bad(f"length of {key}", count, f"more than {MAX_KEPT} values in the header's short arrays")
        return [self._scalar(kind, key) for _ in range(count)]

    def _walk_strings(self, key: str, count: int) -> None:
        """Step over `count` strings."""
        self._walked += count
        if self._walked > MAX_WALKED:
            self.bad(f"length of {key}", count, f"more than {MAX_WALKED} strings in the header")
        pos, data, length = self.pos, self.data, _U64.unpack_from
        try:
            # The hot loop of a cold start. A length past the end makes the next unpack fail; the last is checked below.
            for _ in range(count):
                pos += 8 + length(data, pos)[0]
        except (struct.error, OverflowError):
            pos += 8  # where the length that is not there would end
        if pos > self.end:
            self.bad(f"a string of {key}", pos, f"ends past byte {self.end}")
        if pos > self.have:
            raise Short(pos)
        self.pos = pos

    # Primitives

    def u32(self, field: str) -> int:
        value: int = self._unpack(_U32, field)
        return value

    def u64(self, field: str) -> int:
        value: int = self._unpack(_U64, field)
        return value

    def name(self, field: str, limit: int) -> str:
        """A string of at most `limit` bytes that must be UTF-8."""
        raw = self._bytes(field, limit)
        try:
            return raw.decode()
        except UnicodeDecodeError:
            self.bad(field, raw, "not valid UTF-8")

    def bad(self, field: str, value: object, why: str, hint: str | None = None) -> NoReturn:
        raise bad(self.path, field, value, why, hint)

    def _string(self, key: str) -> str:
        raw = self._bytes(key, MAX_KEPT_BYTES - self._kept_bytes)
        self._kept_bytes += len(raw)
        return raw.decode(errors="replace")

    def _bytes(self, field: str, limit: int) -> bytes:
        """A length-prefixed string of at most `limit` bytes."""
        length = self.u64(field)
        room = min(self.end - self.pos, limit)
        if length > room:
            self.bad(f"length of {field}", length, f"there is room for {room}")
        self._need(length, field)
        self.pos += length
        return self.data[self.pos - length : self.pos]

    def _unpack(self, form: Struct, field: str) -> Any:
        self._need(form.size, field)
        value = form.unpack_from(self.data, self.pos)[0]
        self.pos += form.size
        return value

    def _need(self, count: int, field: str) -> None:
        """Make sure that `count` more bytes are there."""
        if self.pos + count > self.end:
            self.bad(shown(field), f"byte {self.pos}", f"the header ends at byte {self.end}")
        if self.pos + count > self.have:
            raise Short(self.pos + count)
