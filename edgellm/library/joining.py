"""Split GGUF models become one file while they arrive.

llama.cpp's gguf-split cuts between tensors: every part is a GGUF file of its own, the first has the model's keys. The
headers of all parts are known before the first byte of weights, so where each part's weights go in the joined file is
known too, and they are written there at once: no second copy, on any engine one file. Each part keeps its own digest,
over its own bytes, wherever those lie.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Final, NamedTuple

from edgellm.contracts.engine import ModelFile
from edgellm.errors import BadModelFile
from edgellm.formats.gguf import DEFAULT_ALIGNMENT
from edgellm.library.transfer.target import FileTarget

_SIZES: Final = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}
_STRING: Final = 8
_ARRAY: Final = 9
_SPLIT: Final = b"split."


class Place(NamedTuple):
    """Where a part's weights go: from byte `data_start` of the part to byte `joined_at` of the joined file."""

    data_start: int
    joined_at: int


class Plan(NamedTuple):
    """The joined file: its header, its length, and the place of each part."""

    header: bytes
    size: int
    places: tuple[Place, ...]


def plan(parts: Sequence[ModelFile], beginnings: Sequence[bytes]) -> Plan:
    """How to join parts, in order, whose headers have been checked and lie whole in `beginnings`."""
    alignment = parts[0].metadata.get("general.alignment", DEFAULT_ALIGNMENT)
    tables, bases, starts = [], [], []
    base = 0
    for model, raw in zip(parts, beginnings, strict=True):
        keys_end, infos = _walk(raw)[1:]
        own = model.metadata.get("general.alignment", DEFAULT_ALIGNMENT)
        if own != alignment:
            raise BadModelFile(f"{model.path}: general.alignment is {own}; the first part's is {alignment}")
        tables.append([(head, offset + base) for head, offset in infos])
        start = _up(_tables_end(raw, keys_end, len(infos)), alignment)
        starts.append(start)
        bases.append(base)
        base += _up(max(0, model.size - start), alignment)
    header = _header(beginnings[0], tables)
    data_at = _up(len(header), alignment)
    places = tuple(Place(start, data_at + begin) for start, begin in zip(starts, bases, strict=True))
    last = max(0, parts[-1].size - starts[-1])
    return Plan(header.ljust(data_at, b"\0"), data_at + bases[-1] + last, places)


def _header(first: bytes, tables: Sequence[Sequence[tuple[bytes, int]]]) -> bytes:
    """The first part's header without its split keys, and with everybody's tensors."""
    keys = [raw for name, raw in _walk(first)[0] if not name.startswith(_SPLIT)]
    infos = [head + struct.pack("<Q", offset) for table in tables for head, offset in table]
    return first[:8] + struct.pack("<QQ", len(infos), len(keys)) + b"".join(keys) + b"".join(infos)


def _walk(raw: bytes) -> tuple[list[tuple[bytes, bytes]], int, list[tuple[bytes, int]]]:
    """Keys with their encoding, where they end, and the tensor table as (all but the offset, offset)."""
    tensors, count = struct.unpack_from("<QQ", raw, 8)
    pos = 24
    keys = []
    for _ in range(count):
        begin = pos
        length = struct.unpack_from("<Q", raw, pos)[0]
        name = raw[pos + 8 : pos + 8 + length]
        pos = _value_end(raw, pos + 8 + length)
        keys.append((name, raw[begin:pos]))
    keys_end = pos
    infos = []
    for _ in range(tensors):
        end = _info_end(raw, pos)
        infos.append((raw[pos : end - 8], struct.unpack_from("<Q", raw, end - 8)[0]))
        pos = end
    return keys, keys_end, infos


def _tables_end(raw: bytes, pos: int, tensors: int) -> int:
    for _ in range(tensors):
        pos = _info_end(raw, pos)
    return pos


def _info_end(raw: bytes, pos: int) -> int:
    pos += 8 + int(struct.unpack_from("<Q", raw, pos)[0])
    return pos + 4 + 8 * int(struct.unpack_from("<I", raw, pos)[0]) + 4 + 8  # dimensions, type, offset


def _value_end(raw: bytes, pos: int) -> int:
    """Where the value that begins with its type at `pos` ends."""
    kind = struct.unpack_from("<I", raw, pos)[0]
    pos += 4
    if kind == _STRING:
        return pos + 8 + int(struct.unpack_from("<Q", raw, pos)[0])
    if kind != _ARRAY:
        return pos + _SIZES[kind]
    inner, count = struct.unpack_from("<IQ", raw, pos)
    pos += 12
    if inner != _STRING:
        return pos + int(count) * _SIZES[inner]
    for _ in range(count):
        pos += 8 + struct.unpack_from("<Q", raw, pos)[0]
    return pos


def _up(value: int, alignment: int) -> int:
    return -(-value // alignment) * alignment


class PartTarget:
    """One part of a split model: its header in a file of its own, its weights where they belong in the joined file."""

    def __init__(self, head: Path, joined: Path, joined_size: int, place: Place) -> None:
        self._made_of = (head, joined, joined_size, place)
        self._head = FileTarget(head, place.data_start)
        self._joined = FileTarget(joined, joined_size)
        self._place = place

    def again(self) -> PartTarget:
        return PartTarget(*self._made_of)

    def write(self, offset: int, data: bytes | memoryview) -> None:
        head = max(0, self._place.data_start - offset)
        if head:
            self._head.write(offset, data[:head])
        if len(data) > head:
            self._joined.write(self._there(offset + head), data[head:])

    def read(self, offset: int, count: int) -> bytes:
        head = min(count, max(0, self._place.data_start - offset))
        data = self._head.read(offset, head) if head else b""
        return data + (self._joined.read(self._there(offset + head), count - head) if count > head else b"")

    def sync(self) -> None:
        self._joined.sync()

    def close(self) -> None:
        self._head.close()
        self._joined.close()

    def _there(self, offset: int) -> int:
        return offset - self._place.data_start + self._place.joined_at


def begin(joined: Path, plan: Plan) -> None:
    """Make the joined file, as long as it will be, with its header."""
    target = FileTarget(joined, plan.size)
    try:
        target.write(0, plan.header)
        target.sync()
    finally:
        target.close()
