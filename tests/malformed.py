"""Malformed GGUF and safetensors files by the hundred: each a name, the bytes, and the words its error must contain.

Made by rule rather than collected: every count, length, type, shape and offset that a header holds, with every kind of
value that has hurt readers of such files (none, one too many, more than fits, sign bits, products that wrap).
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator, Sequence
from typing import Any

from gguf_files import (
    ARRAY,
    BOOL,
    F32,
    F64,
    I32,
    STRING,
    TENSORS,
    U8,
    U16,
    U32,
    U64,
    array,
    build,
    header,
    key,
    model_keys,
    padded,
    string,
    tensor_info,
    tiny,
)

Case = tuple[str, bytes, str]  # name, contents, what the message must contain

HUGE = 2**64 - 1
ARCH = key("general.architecture", STRING, "llama")
LENGTHS = (HUGE, 1 << 63, (1 << 63) - 1, 1 << 62, 1 << 48, 1 << 32, 1 << 31, 70_000)


def u32(value: int) -> bytes:
    return struct.pack("<I", value)


def u64(value: int) -> bytes:
    return struct.pack("<Q", value)


def counted(keys: Sequence[bytes], tensors: Sequence[bytes] = (), data: int = 4096) -> bytes:
    """A file with these raw parts and honest counts."""
    return padded(header(len(tensors), len(keys)) + b"".join(keys) + b"".join(tensors)) + b"\0" * data


def with_tensor(name: str, kind: int, shape: Sequence[int], offset: int) -> bytes:
    return counted([ARCH], [tensor_info(name, kind, shape, offset)])


def gguf_cases() -> list[Case]:
    return [*_starts(), *_counts(), *_keys(), *_values(), *_arrays(), *_facts(), *_tensors(), *_layouts(), *_cuts()]


def _starts() -> Iterator[Case]:
    body = tiny()[4:]
    for magic in (b"GGML", b"ggml", b"lmgg", b"tjgg", b"FUGG", b"gguf", b"\0\0\0\0", b"PK\3\4", b"<!DO", b"vers"):
        yield f"magic {magic!r}", magic + body, "is no GGUF file"
    for version in (0, 1, 4, 255, 1 << 31, (1 << 32) - 1):
        yield f"version {version}", b"GGUF" + u32(version) + body[4:], f"version is {version}"
    for version in (2, 3):
        yield f"big-endian {version}", b"GGUF" + struct.pack(">I", version) + body[4:], "big-endian"
    for length in (0, 1, 3, 4, 8, 16, 23):
        yield f"{length} bytes", tiny()[:length], f"{length} bytes"


def _counts() -> Iterator[Case]:
    for count in LENGTHS:
        yield f"{count} keys", header(0, count) + b"\0" * 64, f"key count is {count}"
        yield f"{count} tensors", header(count, 0) + b"\0" * 64, f"tensor count is {count}"
    yield "one key too many", header(0, 2) + ARCH, "key 1"
    yield "one tensor too many", header(1, 1) + ARCH, "tensor"
    few = header(1, 1) + ARCH + key("a", U32, 1) + tensor_info("t", 0, [4], 0)
    yield "one key too few", few + b"\0" * 64, "tensor a"


def _keys() -> Iterator[Case]:
    for length in LENGTHS:
        yield f"key of {length}", header(0, 1) + u64(length) + b"\0" * 64, f"length of key 0 is {length}"
    for raw in (b"\xff\xfe", b"\xc3", b"\xed\xa0\x80", b"a\x80"):
        yield f"key {raw!r}", counted([ARCH, key(raw, U32, 1)]), "not valid UTF-8"
    for name in ("a", "", "general.architecture", "x" * 300):
        twice = [ARCH, key(name, U32, 1), key(name, U32, 1)]
        yield f"key {name[:20]!r} twice", counted(twice), "it occurs twice"
    for kind in (13, 14, 255, (1 << 31), (1 << 32) - 1):
        yield f"value of type {kind}", counted([ARCH, string("a") + u32(kind)]), f"type of a is {kind}"


def _values() -> Iterator[Case]:
    for kind, width in ((U8, 1), (U16, 2), (U32, 4), (F32, 4), (I32, 4), (BOOL, 1), (U64, 8), (F64, 8)):
        cut = b"\0" * (width - 1)
        yield f"type {kind} cut", header(0, 2) + ARCH + string("a") + u32(kind) + cut, "the header ends at byte"
    for length in LENGTHS:
        text = string("a") + u32(STRING) + u64(length)
        yield f"text of {length}", counted([ARCH, text]), f"length of a is {length}"


def _arrays() -> Iterator[Case]:
    for kind in (U8, U32, F64, BOOL, STRING):
        for length in LENGTHS[:-1]:
            raw = string("a") + u32(ARRAY) + u32(kind) + u64(length)
            yield f"array of {length} of type {kind}", counted([ARCH, raw]), f"length of a is {length}"
    for kind in (13, 99, (1 << 32) - 1):
        yield f"array of type {kind}", counted([ARCH, string("a") + u32(ARRAY) + u32(kind) + u64(1)]), "type of a"
    for depth in (1, 2, 50):
        nested = string("a") + (u32(ARRAY) + u32(ARRAY) + u64(1)) * depth
        yield f"arrays nested {depth} deep", counted([ARCH, nested]), "arrays of arrays"
    for at in (0, 50, 99):
        for length in (HUGE, 1 << 63, 1 << 20, 10_000):
            strings = [u64(length) if index == at else u64(0) for index in range(100)]
            raw = string("a") + u32(ARRAY) + u32(STRING) + u64(100) + b"".join(strings)
            yield f"string {at} of {length}", counted([ARCH, raw]), "a string of a"
    short = string("a") + u32(ARRAY) + u32(STRING) + u64(3) + string("x") + u64(HUGE)
    yield "a kept string", counted([ARCH, short]), f"length of a is {HUGE}"


def _facts() -> Iterator[Case]:
    yield "no architecture", counted([key("a", U32, 1)]), "general.architecture is absent"
    for name in ("", "../x", "a/b", "a b", "x" * 65, "\x1b[2J", "..", "-x"):
        keys = [key("general.architecture", STRING, name)]
        yield f"architecture {name[:20]!r}", counted(keys), "general.architecture is"
    architectures: tuple[tuple[int, Any], ...] = ((U32, 7), (BOOL, True), (F32, 1.0))
    for kind, value in architectures:
        yield f"architecture of type {kind}", counted([key("general.architecture", kind, value)]), "architecture is"
    for alignment in (0, 3, 7, 33, 48, 1000, (1 << 32) - 1):
        keys = [ARCH, key("general.alignment", U32, alignment)]
        yield f"alignment {alignment}", counted(keys), f"general.alignment is {alignment}"
    alignments: tuple[tuple[int, Any], ...] = ((BOOL, True), (STRING, "32"), (F32, 32.0), (I32, -32))
    for kind, value in alignments:
        yield (
            f"alignment of type {kind}",
            counted([ARCH, key("general.alignment", kind, value)]),
            "general.alignment is",
        )


def _tensors() -> Iterator[Case]:
    for length in (65, 1000, *LENGTHS):
        raw = u64(length) + b"t" * min(length, 1000)
        yield f"tensor name of {length}", counted([ARCH], [raw]), f"length of name of tensor 0 is {length}"
    yield "tensor name not UTF-8", counted([ARCH], [tensor_info(b"\xff", 0, [4], 0)]), "not valid UTF-8"
    same = [tensor_info("t", 0, [4], 0), tensor_info("t", 0, [4], 32)]
    yield "tensor twice", counted([ARCH], same), "name of tensor 1 is t: it occurs twice"
    for dims in (5, 8, 1000, 1 << 31, (1 << 32) - 1):
        yield f"{dims} dimensions", counted([ARCH], [string("t") + u32(dims)]), f"dimension count is {dims}"
    shapes = ([0], [4, 0], [0, 0, 0, 0], [1 << 63], [HUGE], [1 << 32, 1 << 31], [1 << 32, 1 << 32], [1 << 16] * 4)
    for shape in (*shapes, [3, HUGE], [HUGE, HUGE, HUGE, HUGE], [1 << 21, 1 << 21, 1 << 21]):
        yield f"shape {shape}", with_tensor("t", 0, shape, 0), "tensor t shape"
    for kind, row in ((2, 31), (3, 33), (8, 1), (12, 128), (12, 255), (39, 16)):
        yield f"row of {row} of type {kind}", with_tensor("t", kind, [row], 0), "multiples of"
    for kind in (4, 5, 31, 32, 33, 36, 37, 38):
        yield f"removed type {kind}", with_tensor("t", kind, [32], 0), "was removed from the format"
    for kind in (42, 77, 1 << 31, (1 << 32) - 1):
        yield f"tensor type {kind}", with_tensor("t", kind, [32], 0), f"tensor t type is {kind}"


def _layouts() -> Iterator[Case]:
    for offset in (1, 8, 31, 33):
        yield f"offset {offset}", with_tensor("t", 0, [4], offset), f"tensor t offset is {offset}"
    for offset in (1 << 13, 1 << 32, 1 << 40, 1 << 63, HUGE - 31):
        yield f"offset {offset}", with_tensor("t", 0, [4], offset), "tensor t data"
    for elements in (1025, 1 << 20, 1 << 40, 1 << 60):
        yield f"{elements} elements", with_tensor("t", 0, [elements], 0), "tensor t data"
    for second in (0, 32, 96):
        pair = [tensor_info("t", 0, [32], 0), tensor_info("u", 0, [32], second)]
        yield f"overlap at {second}", counted([ARCH], pair), "offset is"
    inside = [tensor_info("t", 0, [64], 0), tensor_info("u", 0, [8], 256), tensor_info("v", 0, [8], 32)]
    yield "one tensor inside another", counted([ARCH], inside), "inside t"
    many = [tensor_info(f"t{i}", 0, [1 << 50, 1], 0) for i in range(50)]
    yield "sizes that add up past 2^64", counted([ARCH], many), "tensor t0 data"


def _cuts() -> Iterator[Case]:
    data = build([*model_keys(words=70)[:9], array("layers", U32, range(40))], TENSORS)
    for length in range(24, len(data), 41):
        yield f"cut at {length}", data[:length], " is "


# -- safetensors -------------------------------------------------------------------------------------


def safetensors(tensors: Any, data: bytes = b"", length: int | None = None) -> bytes:
    """A file with this header, a JSON value or its raw text, and this data."""
    raw = tensors if isinstance(tensors, bytes) else json.dumps(tensors).encode()
    return u64(len(raw) if length is None else length) + raw + data


def entry(dtype: Any = "F32", shape: Any = (2, 2), offsets: Any = (0, 16)) -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": offsets}


GOOD = safetensors({"__metadata__": {"format": "pt"}, "a": entry(), "b": entry("BF16", [4], [16, 24])}, b"\0" * 24)


def safetensors_cases() -> list[Case]:
    return [*_headers(), *_texts(), *_entries(), *_data()]


def _headers() -> Iterator[Case]:
    for length in (0, 1, len(GOOD), *LENGTHS):
        yield f"header of {length}", u64(length) + GOOD[8:], f"header length is {length}"
    for size in (0, 5, 8, 9):
        yield f"{size} bytes", GOOD[:size], f"{size} bytes long"
    yield "a pickle", b"\x80\x04\x95\x00\x01\x00\x00\x00\x8c" + b"x" * 100, "header length"
    yield "a zip", b"PK\3\4" + b"x" * 100, "header length"


def _texts() -> Iterator[Case]:
    texts = (
        b"[]",
        b"7",
        b'"a"',
        b"null",
        b"{,}",
        b'{"a"}',
        b'{"a":}',
        b"{]",
        b'{"a":1',
        b'{"a" 1}',
        b"{'a':1}",
        b"{}x",
    )
    for raw in (*texts, b"\xff\xff", b'{"\xff":1}', b'{"a\n":1}', b"[" * 5000, b'{"a":' * 5000, b'{"a":{}}'):
        yield f"header {raw[:20]!r}", safetensors(raw), " is "
    for raw in (b'{"\\ud800":{}}', b'{"\\x":{}}', b'{"\\u12":{}}'):
        yield f"key {raw!r}", safetensors(raw), "not a valid text"
    twice = b'{"a":' + json.dumps(entry("U8", [0], [0, 0])).encode() + b"}"
    yield "tensor twice", safetensors(twice[:-1] + b"," + twice[1:]), "it occurs twice"
    values: tuple[Any, ...] = ([], 7, {"a": 1}, {"a": None}, {"a": {}}, {"a": ["b"]})
    for metadata in values:
        yield f"metadata {metadata}", safetensors({"__metadata__": metadata}), "__metadata__"


def _entries() -> Iterator[Case]:
    for dtype in ("", "f32", "Q4_0", "F31", 32, None, ["F32"]):
        yield f"dtype {dtype!r}", safetensors({"a": entry(dtype)}, b"\0" * 16), "tensor a dtype"
    for shape in ("x", 4, None, [-1], [2.0], [1e3], ["2"], [[2]], [2] * 9, [1 << 63], [1 << 32, 1 << 32], [HUGE] * 8):
        yield f"shape {shape!r}", safetensors({"a": entry(shape=shape)}, b"\0" * 16), "tensor a shape"
    for offsets in ([], [0], [0, 8, 16], [-16, 0], [16, 0], "x", None, [0.0, 16.0], [0, "16"], [[0, 16]]):
        yield f"offsets {offsets!r}", safetensors({"a": entry(offsets=offsets)}, b"\0" * 16), "tensor a data_offsets"
    for missing in ("dtype", "shape", "data_offsets"):
        part = {name: value for name, value in entry().items() if name != missing}
        yield f"no {missing}", safetensors({"a": part}, b"\0" * 16), f"tensor a {missing} is absent"
    yield "another field", safetensors({"a": entry() | {"code": "x"}}, b"\0" * 16), "tensor a is"
    values: tuple[Any, ...] = (None, 7, "x", [])
    for value in values:
        yield f"entry {value!r}", safetensors({"a": value}), "tensor a is"
    yield "half a byte", safetensors({"a": entry("F4", [3], [0, 1])}, b"\0"), "whole bytes"
    yield "a long name", safetensors({"n" * 2000: entry()}, b"\0" * 16), "name of a tensor"


def _data() -> Iterator[Case]:
    for end in (15, 17, 0, HUGE):
        yield f"end {end}", safetensors({"a": entry(offsets=[0, end])}, b"\0" * 32), "takes 16 bytes"
    for start in (1, 16, 1 << 40, 1 << 62):
        moved = {"a": entry(offsets=[start, start + 16])}
        yield f"begin {start}", safetensors(moved, b"\0" * 16), "tensor a data_offsets"
    for start in (0, 8, 15):
        pair = {"a": entry(), "b": entry(offsets=[start, start + 16])}
        yield f"overlap at {start}", safetensors(pair, b"\0" * 32), "data_offsets"
    hole = {"a": entry(), "b": entry(offsets=[24, 40])}
    yield "a hole", safetensors(hole, b"\0" * 40), "nobody's bytes"
    yield "bytes after the last", safetensors({"a": entry()}, b"\0" * 17), "its tensors end at"
    for cut in (1, 8, 23):
        yield f"cut by {cut}", GOOD[:-cut], "data_offsets"
