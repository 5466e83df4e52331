"""Reads the header of a GGUF file (v2, v3) without believing it.

Counts, lengths, offsets and sizes are Python integers, compared with the file's own length before anything is
allocated or followed: the file may come from anywhere, and the engine's native reader must only see files that passed
here. Reading is one walk over a memory map, or over the beginning of a file that lies elsewhere; the weights are never
touched.

Layout: magic, version, tensor count, key count; keys (name, type, value); tensors (name, dims, type, offset); data.
Source: the GGUF specification, https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
"""

from __future__ import annotations

import math
import mmap
import re
from pathlib import Path
from typing import Any, Final, NamedTuple, NoReturn

from edgellm.contracts.engine import ModelFile, TensorInfo
from edgellm.errors import BadModelFile, pip_install
from edgellm.formats.files import More, mapped
from edgellm.formats.gguf_cursor import Cursor, Short
from edgellm.formats.gguf_types import REMOVED_TENSOR_TYPES, TENSOR_TYPES

VERSIONS: Final = (2, 3)
DEFAULT_ALIGNMENT: Final = 32
MAX_HEADER: Final = 1 << 28  # bytes; the largest real ones are some 20 MiB
MAX_KEYS: Final = 1 << 12
MAX_TENSORS: Final = 1 << 16
MAX_TENSOR_NAME: Final = 64  # bytes, from the specification
MAX_DIMS: Final = 4
MAX_ELEMENTS: Final = (1 << 63) - 1
FIRST_READ: Final = 1 << 20  # bytes of a remote file worth fetching first: all of most headers but for the vocabulary

_LEAST: Final = 24  # bytes before the first key
_SMALLEST_KEY: Final = 8 + 4 + 1
_SMALLEST_TENSOR: Final = 8 + 4 + 4 + 8
_ARCHITECTURE: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")
_OTHER_FORMATS: Final = {
    b"ggml": "the format before GGUF; get the model as GGUF",
    b"lmgg": "the format before GGUF; get the model as GGUF",
    b"fmgg": "the format before GGUF; get the model as GGUF",
    b"tjgg": "the format before GGUF; get the model as GGUF",
    b"PK\3\4": "a zip archive; unpack it, or get the model as GGUF",
    b"\x1f\x8b\x08\0": "a gzip archive; unpack it",
    b"vers": "a pointer of Git LFS, not the file itself: fetch it with `git lfs pull`, or download it",
    b"<!do": "a web page; the download needed a login, or the address is not that of the file",
    b"<!DO": "a web page; the download needed a login, or the address is not that of the file",
    b"<htm": "a web page; the download needed a login, or the address is not that of the file",
    b"\0\0\0\0": "empty space; the download was not finished: fetch it again",
}


def read_model(path: Path) -> ModelFile:
    """The checked header of the GGUF file at `path`.

    Arrays of more than KEPT_STRINGS strings or KEPT_NUMBERS numbers are walked and left out of the metadata. A later
    part of a split model need not name an architecture; it is "" then.
    Raises BadModelFile naming the file, the field and the value, for a file that is missing, is not a regular file,
    is not GGUF, or whose parts do not fit in it.
    """
    with mapped(path, ".gguf", MAX_HEADER, _LEAST) as (data, size):
        return _read(path, data, size)


def read_prefix(path: Path, prefix: bytes, size: int) -> ModelFile | More:
    """What `read_model` would say of a file of `size` bytes that begins with `prefix`, or how much more it takes.

    `path` only names the file: nothing is opened. Start with FIRST_READ bytes (or all, if there are fewer), append what
    is missing up to `More.total`, and ask again: a header of 20 MiB takes six requests. Raises BadModelFile.
    """
    if len(prefix) > size:
        raise ValueError(f"a prefix of {len(prefix)} bytes of a file of {size}")
    try:
        return _read(path, prefix, size)
    except Short as short:
        return More(min(max(short.total, 2 * len(prefix)), size, MAX_HEADER))


def read_keys(cursor: Cursor, size: int) -> dict[str, Any]:
    """The metadata alone, of a file of `size` bytes: the cursor then stands at the tensors. Raises BadModelFile."""
    return cursor.metadata(_Header(cursor, size).start()[1])


def _read(path: Path, data: bytes | mmap.mmap, size: int) -> ModelFile:
    return _Header(Cursor(path, data, min(size, MAX_HEADER)), size).read()


class _Entry(NamedTuple):
    """A line of the tensor table: type by number, offset relative to the start of tensor data."""

    name: str
    type: int
    shape: tuple[int, ...]
    offset: int


class _Header:
    """One pass over the header of a file of `size` bytes."""

    def __init__(self, cursor: Cursor, size: int) -> None:
        self.cursor = cursor
        self.size = size

    def read(self) -> ModelFile:
        tensor_count, key_count = self.start()
        metadata = self.cursor.metadata(key_count)
        architecture = self._architecture(metadata)
        alignment = metadata.get("general.alignment", DEFAULT_ALIGNMENT)
        if type(alignment) is not int or alignment <= 0 or alignment & (alignment - 1):
            self._bad("general.alignment", alignment, "expected a power of two")
        found = self._tensor_table(tensor_count)
        start = -(-self.cursor.pos // alignment) * alignment
        tensors = tuple([self._place(entry, start, alignment) for entry in found])
        self._require_apart(tensors)
        return ModelFile(self.cursor.path, self.size, architecture, metadata, tensors)

    def start(self) -> tuple[int, int]:
        """Check magic and version; the counts of tensors and keys."""
        cursor = self.cursor
        if self.size < _LEAST:
            self._bad("the file", f"{self.size} bytes long", f"a .gguf header needs {_LEAST}")
        if cursor.have < _LEAST:
            raise Short(_LEAST)
        magic = cursor.data[:4]
        if magic != b"GGUF":
            raise BadModelFile(
                f"{cursor.path}: this is no GGUF file: it begins with {repr(bytes(magic))[1:]}, not with 'GGUF'",
                hint=_other_format(magic),
            )
        cursor.pos = 4
        version = cursor.u32("version")
        if version not in VERSIONS:
            self._refuse_version(version)
        tensors, keys = cursor.u64("tensor count"), cursor.u64("key count")
        for field, count, smallest, most in (
            ("tensor count", tensors, _SMALLEST_TENSOR, MAX_TENSORS),
            ("key count", keys, _SMALLEST_KEY, MAX_KEYS),
        ):
            room = min((cursor.end - cursor.pos) // smallest, most)
            if count > room:
                self._bad(field, count, f"there is room for {room}")
        return tensors, keys

    def _refuse_version(self, version: int) -> NoReturn:
        if int.from_bytes(version.to_bytes(4, "little"), "big") in VERSIONS:
            tool = f"`gguf-convert-endian FILE little` ({pip_install('gguf')})"
            swap = f"get the little-endian file, or swap it with {tool}"
            self._bad("version", version, "the file is big-endian, for other processors than these", swap)
        if version == 1:
            newer = "get a newer file of the model; every GGUF made since September 2023 will do"
            self._bad("version", version, "a draft of the format with 32-bit counts; supported are 2 and 3", newer)
        update = "update edgellm, or get the model in version 3" if 3 < version < 100 else None
        self._bad("version", version, "supported are 2 and 3", update)

    def _architecture(self, metadata: dict[str, Any]) -> str:
        name = metadata.get("general.architecture")
        if name is None and metadata.get("split.no"):
            return ""
        if not isinstance(name, str) or not _ARCHITECTURE.fullmatch(name):
            self._bad("general.architecture", name or "absent", "expected the name of an architecture")
        return name

    # Tensors

    def _tensor_table(self, count: int) -> list[_Entry]:
        """The entries of the tensor table, in the file's order; their contents are checked by `_place`."""
        cursor = self.cursor
        found: list[_Entry] = []
        seen: set[str] = set()
        for index in range(count):
            name = cursor.name(f"name of tensor {index}", MAX_TENSOR_NAME)
            if name in seen:
                self._bad(f"name of tensor {index}", name, "it occurs twice")
            seen.add(name)
            field = f"tensor {name}"
            dims = cursor.u32(field)
            if dims > MAX_DIMS:
                self._bad(f"{field} dimension count", dims, f"at most {MAX_DIMS}")
            shape = tuple([cursor.u64(field) for _ in range(dims)])
            found.append(_Entry(name, cursor.u32(field), shape, cursor.u64(field)))
        return found

    def _place(self, entry: _Entry, start: int, alignment: int) -> TensorInfo:
        """Check an entry's type, shape and extent against the file; `start` is where tensor data begins."""
        field = f"tensor {entry.name}"
        kind = TENSOR_TYPES.get(entry.type)
        if kind is None:
            removed = REMOVED_TENSOR_TYPES.get(entry.type)
            why = f"{removed} was removed from the format" if removed else "no such tensor type"
            hint = "get the model in another quantisation" if removed else "update edgellm, or fetch the file again"
            self._bad(f"{field} type", entry.type, why, hint)
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
            hint = "the file is cut short or damaged; fetch it again"
            self._bad(f"{field} data", f"bytes {first} to {first + nbytes}", f"the file ends at byte {self.size}", hint)
        return TensorInfo(entry.name, kind.name, entry.shape, nbytes, first)

    def _require_apart(self, tensors: tuple[TensorInfo, ...]) -> None:
        """No two tensors share a byte."""
        before: TensorInfo | None = None
        for tensor in sorted(tensors, key=lambda tensor: tensor.offset):
            if before is not None and before.offset + before.nbytes > tensor.offset:
                ends = before.offset + before.nbytes
                self._bad(f"tensor {tensor.name} offset", tensor.offset, f"inside {before.name}, which ends at {ends}")
            before = tensor

    def _bad(self, field: str, value: object, why: str, hint: str | None = None) -> NoReturn:
        self.cursor.bad(field, value, why, hint)


def _other_format(magic: bytes) -> str:
    """What begins with these bytes, where people are known to have it in place of a model; else what a model is."""
    found = _OTHER_FORMATS.get(magic)
    return f"this is {found}" if found else "get the model as GGUF; `edgellm list --catalogue` shows what can be pulled"
