"""Reads the header of a GGUF file (v2, v3) without believing it.

Counts, lengths, offsets and sizes are Python integers, compared with the file's own length before anything is
allocated or followed: the file may come from anywhere, and the engine's native reader must only see files that passed
here. Reading is one walk over a memory map; the weights are never touched.

Layout: magic, version, tensor count, key count; keys (name, type, value); tensors (name, dims, type, offset); data.
Source: the GGUF specification, https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
"""

from __future__ import annotations

import math
import mmap
import os
import re
import stat
import struct
from pathlib import Path
from struct import Struct
from typing import Any, Final, NamedTuple, NoReturn

from edgellm.contracts.engine import ModelFile, TensorInfo
from edgellm.errors import BadModelFile
from edgellm.formats.gguf_types import REMOVED_TENSOR_TYPES, TENSOR_TYPES

VERSIONS: Final = (2, 3)
DEFAULT_ALIGNMENT: Final = 32
KEPT_STRINGS: Final = 64  # longer arrays of strings are vocabularies: walked, not kept
KEPT_NUMBERS: Final = 1024  # longer arrays of numbers too; per-layer tables are shorter
MAX_HEADER: Final = 1 << 28  # bytes; the largest real ones are some 20 MiB
MAX_KEYS: Final = 1 << 12
MAX_TENSORS: Final = 1 << 16
MAX_KEY: Final = 65_535  # bytes, from the specification
MAX_TENSOR_NAME: Final = 64  # bytes, from the specification
MAX_DIMS: Final = 4
MAX_ELEMENTS: Final = (1 << 63) - 1
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
_SMALLEST_KEY: Final = 8 + 4 + 1
_SMALLEST_TENSOR: Final = 8 + 4 + 4 + 8
_ARCHITECTURE: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")
_DAMAGED: Final = "the file is damaged or is not a GGUF model; fetch it again"


def read_model(path: Path) -> ModelFile:
    """The checked header of the GGUF file at `path`.

    Arrays of more than KEPT_STRINGS strings or KEPT_NUMBERS numbers are walked and left out of the metadata.
    Raises BadModelFile naming the file, the field and the value, for a file that is missing, is not a regular file,
    is not GGUF, or whose parts do not fit in it.
    """
    try:
        _require_regular(path, path.stat().st_mode)  # before opening: a FIFO would block, a device may act
        with path.open("rb") as file:
            state = os.fstat(file.fileno())
            _require_regular(path, state.st_mode)
            if state.st_size < 24:
                raise BadModelFile(f"{path}: the file has {state.st_size} bytes; a GGUF header needs 24", hint=_DAMAGED)
            mapped = min(state.st_size, MAX_HEADER)
            with mmap.mmap(file.fileno(), mapped, access=mmap.ACCESS_READ) as data:
                return _Header(path, data, mapped, state.st_size).read()
    except (OSError, ValueError) as error:  # ValueError: a path no system takes, a file that shrinks meanwhile
        reason = getattr(error, "strerror", None) or error
        raise BadModelFile(f"{path}: {reason}", hint="check the path and its permissions") from error


def _require_regular(path: Path, mode: int) -> None:
    if stat.S_ISREG(mode):
        return
    kinds = (
        (stat.S_ISDIR, "folder"),
        (stat.S_ISFIFO, "pipe"),
        (stat.S_ISSOCK, "socket"),
        (stat.S_ISCHR, "device"),
    )
    kind = next((name for test, name in kinds if test(mode)), "device")
    raise BadModelFile(f"{path}: is a {kind}, not a regular file", hint="name a .gguf file")


class _Entry(NamedTuple):
    """A line of the tensor table: type by number, offset relative to the start of tensor data."""

    name: str
    type: int
    shape: tuple[int, ...]
    offset: int


class _Header:
    """One pass over the header; `pos` is the next byte, `end` the end of the mapped part, `size` that of the file."""

    def __init__(self, path: Path, data: mmap.mmap, end: int, size: int) -> None:
        self.path = path
        self.data = data
        self.pos = 0
        self.end = end
        self.size = size
        self.walked = 0
        self.kept_values = 0
        self.kept_bytes = 0

    def read(self) -> ModelFile:
        tensor_count, key_count = self._start()
        metadata = self._metadata(key_count)
        architecture = metadata.get("general.architecture")
        if not isinstance(architecture, str) or not _ARCHITECTURE.fullmatch(architecture):
            self._bad("general.architecture", architecture or "absent", "expected the name of an architecture")
        alignment = metadata.get("general.alignment", DEFAULT_ALIGNMENT)
        if type(alignment) is not int or alignment <= 0 or alignment & (alignment - 1):
            self._bad("general.alignment", alignment, "expected a power of two")
        found = self._tensor_table(tensor_count)
        start = -(-self.pos // alignment) * alignment
        tensors = tuple([self._place(entry, start, alignment) for entry in found])
        return ModelFile(self.path, self.size, architecture, metadata, tensors)

    def _start(self) -> tuple[int, int]:
        """Check magic and version; the counts of tensors and keys."""
        magic = self.data[:4]
        if magic != b"GGUF":
            self._bad("magic", magic, "expected b'GGUF'")
        version = _U32.unpack_from(self.data, 4)[0]
        if version not in VERSIONS:
            swapped = int.from_bytes(self.data[4:8], "big") in VERSIONS
            self._bad("version", version, "the file is big-endian" if swapped else "supported are 2 and 3")
        self.pos = 8
        tensors, keys = self._u64("tensor count"), self._u64("key count")
        for field, count, smallest, most in (
            ("tensor count", tensors, _SMALLEST_TENSOR, MAX_TENSORS),
            ("key count", keys, _SMALLEST_KEY, MAX_KEYS),
        ):
            room = min((self.end - self.pos) // smallest, most)
            if count > room:
                self._bad(field, count, f"there is room for {room}")
        return tensors, keys

    # Keys and values

    def _metadata(self, count: int) -> dict[str, Any]:
        metadata: dict[str, Any] = {}
        seen: set[str] = set()
        for index in range(count):
            key = self._name(f"key {index}", MAX_KEY)
            if key in seen:
                self._bad(f"key {index}", key, "it occurs twice")
            seen.add(key)
            kind = self._u32(f"type of {key}")
            value = self._array(key) if kind == _ARRAY else self._scalar(kind, key)
            if value is not None:
                metadata[key] = value
        return metadata

    def _scalar(self, kind: int, key: str) -> Any:
        if kind == _STRING:
            return self._string(key)
        if kind == _BOOL:
            return self._byte(key) != 0
        form = _SCALARS.get(kind)
        if form is None:
            self._bad(f"type of {key}", kind, "no such value type")
        return self._unpack(form, key)

    def _array(self, key: str) -> list[Any] | None:
        """The values of a short array; None for one that is only walked."""
        kind, count = self._u32(f"type of {key}"), self._u64(f"length of {key}")
        form = _SCALARS.get(kind)
        if kind == _ARRAY:
            self._bad(f"type of {key}", kind, "arrays of arrays are not supported")
        if kind not in (_BOOL, _STRING) and form is None:
            self._bad(f"type of {key}", kind, "no such value type")
        width = 8 if kind == _STRING else 1 if form is None else form.size
        room = (self.end - self.pos) // width
        if count > room:
            self._bad(f"length of {key}", count, f"there is room for {room}")
        if kind == _STRING and count > KEPT_STRINGS:
            self._walk_strings(key, count)
            return None
        if count > KEPT_NUMBERS:
            self.pos += count * width
            return None
        self.kept_values += count
        if self.kept_values > MAX_KEPT:
            self._bad(f"length of {key}", count, f"more than {MAX_KEPT} values in the header's short arrays")
        return [self._scalar(kind, key) for _ in range(count)]

    def _walk_strings(self, key: str, count: int) -> None:
        """Step over `count` strings."""
        self.walked += count
        if self.walked > MAX_WALKED:
            self._bad(f"length of {key}", count, f"more than {MAX_WALKED} strings in the header")
        pos, data, length = self.pos, self.data, _U64.unpack_from
        try:
            # The hot loop of a cold start. A length past the end makes the next unpack fail; the last is checked below.
            for _ in range(count):
                pos += 8 + length(data, pos)[0]
        except (struct.error, OverflowError):
            self._bad(f"a string of {key}", pos, f"ends past byte {self.end}")
        if pos > self.end:
            self._bad(f"a string of {key}", pos, f"ends past byte {self.end}")
        self.pos = pos

    # Tensors

    def _tensor_table(self, count: int) -> list[_Entry]:
        """The entries of the tensor table, in the file's order; their contents are checked by `_place`."""
        found: list[_Entry] = []
        seen: set[str] = set()
        for index in range(count):
            name = self._name(f"name of tensor {index}", MAX_TENSOR_NAME)
            if name in seen:
                self._bad(f"name of tensor {index}", name, "it occurs twice")
            seen.add(name)
            field = f"tensor {name}"
            dims = self._u32(field)
            if dims > MAX_DIMS:
                self._bad(f"{field} dimension count", dims, f"at most {MAX_DIMS}")
            shape = tuple([self._u64(field) for _ in range(dims)])
            found.append(_Entry(name, self._u32(field), shape, self._u64(field)))
        return found

    def _place(self, entry: _Entry, start: int, alignment: int) -> TensorInfo:
        """Check an entry's type, shape and extent against the file; `start` is where tensor data begins."""
        field = f"tensor {entry.name}"
        kind = TENSOR_TYPES.get(entry.type)
        if kind is None:
            removed = REMOVED_TENSOR_TYPES.get(entry.type)
            why = f"{removed} was removed from the format" if removed else "no such tensor type"
            self._bad(f"{field} type", entry.type, why)
        elements = math.prod(entry.shape)
        if not 0 < elements <= MAX_ELEMENTS:
            self._bad(f"{field} shape", entry.shape, "its product is not between 1 and 2^63 - 1")
        row = entry.shape[0] if entry.shape else 1
        if row % kind.elements:
            self._bad(f"{field} shape", entry.shape, f"rows of {kind.name} hold multiples of {kind.elements}")
        if entry.offset % alignment:
            self._bad(f"{field} offset", entry.offset, f"not a multiple of the alignment {alignment}")
        nbytes = elements // kind.elements * kind.nbytes
        first = start + entry.offset
        if first + nbytes > self.size:
            self._bad(f"{field} data", f"bytes {first} to {first + nbytes}", f"the file ends at byte {self.size}")
        return TensorInfo(entry.name, kind.name, entry.shape, nbytes, first)

    # Primitives: each checks that what it reads lies in the file

    def _unpack(self, form: Struct, field: str) -> Any:
        if self.pos + form.size > self.end:
            self._truncated(field)
        value = form.unpack_from(self.data, self.pos)[0]
        self.pos += form.size
        return value

    def _u32(self, field: str) -> int:
        value: int = self._unpack(_U32, field)
        return value

    def _u64(self, field: str) -> int:
        value: int = self._unpack(_U64, field)
        return value

    def _byte(self, field: str) -> int:
        if self.pos >= self.end:
            self._truncated(field)
        self.pos += 1
        return self.data[self.pos - 1]

    def _bytes(self, field: str, limit: int) -> bytes:
        """A length-prefixed string of at most `limit` bytes."""
        length = self._u64(field)
        room = min(self.end - self.pos, limit)
        if length > room:
            self._bad(f"length of {field}", length, f"there is room for {room}")
        self.pos += length
        return self.data[self.pos - length : self.pos]

    def _name(self, field: str, limit: int) -> str:
        raw = self._bytes(field, limit)
        try:
            return raw.decode()
        except UnicodeDecodeError:
            self._bad(field, raw, "not valid UTF-8")

    def _string(self, key: str) -> str:
        raw = self._bytes(key, MAX_KEPT_BYTES - self.kept_bytes)
        self.kept_bytes += len(raw)
        return raw.decode(errors="replace")

    def _truncated(self, field: str) -> NoReturn:
        self._bad(field, f"byte {self.pos}", f"the header ends at byte {self.end}")

    def _bad(self, field: str, value: object, why: str) -> NoReturn:
        raise BadModelFile(f"{self.path}: {_shown(field)} is {_shown(value)}: {why}", hint=_DAMAGED)


def _shown(value: object) -> str:
    """Text from the file made safe for a terminal and a log line: escaped and short."""
    text = value if isinstance(value, str) else repr(value)
    text = "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text[:200])
    return text if len(text) <= 120 else text[:117] + "…"
