"""Tiny GGUF files, well-formed and not, built byte by byte so that the reader under test is not its own judge."""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence
from typing import Any

U8, I8, U16, I16, U32, I32, F32, BOOL, STRING, ARRAY, U64, I64, F64 = range(13)
FORMATS = {
    U8: "B",
    I8: "b",
    U16: "H",
    I16: "h",
    U32: "I",
    I32: "i",
    F32: "f",
    BOOL: "?",
    U64: "Q",
    I64: "q",
    F64: "d",
}
SIZES = {
    0: (1, 4),
    1: (1, 2),
    2: (32, 18),
    3: (32, 20),
    8: (32, 34),
    12: (256, 144),
}  # F32 F16 Q4_0 Q4_1 Q8_0 Q4_K

Key = bytes  # one encoded key with its value
Tensor = tuple[str, int, tuple[int, ...]]  # name, type, shape


def string(text: str | bytes) -> bytes:
    raw = text.encode() if isinstance(text, str) else text
    return struct.pack("<Q", len(raw)) + raw


def scalar(kind: int, value: Any) -> bytes:
    return string(value) if kind == STRING else struct.pack("<" + FORMATS[kind], value)


def key(name: str | bytes, kind: int, value: Any) -> Key:
    return string(name) + struct.pack("<I", kind) + scalar(kind, value)


def array(name: str, kind: int, values: Sequence[Any]) -> Key:
    head = string(name) + struct.pack("<IIQ", ARRAY, kind, len(values))
    return head + b"".join(scalar(kind, value) for value in values)


def tensor_info(name: str | bytes, kind: int, shape: Sequence[int], offset: int) -> bytes:
    return string(name) + struct.pack(f"<I{len(shape)}QIQ", len(shape), *shape, kind, offset)


def header(tensors: int, keys: int, version: int = 3) -> bytes:
    return b"GGUF" + struct.pack("<IQQ", version, tensors, keys)


def padded(data: bytes, alignment: int = 32) -> bytes:
    return data + b"\0" * (-len(data) % alignment)


def nbytes(kind: int, shape: Sequence[int]) -> int:
    elements, size = SIZES[kind]
    return math.prod(shape) // elements * size


def build(keys: Sequence[Key], tensors: Sequence[Tensor], *, version: int = 3, alignment: int = 32) -> bytes:
    """A well-formed file; the data of tensor i is bytes of value i + 1."""
    infos, data = b"", b""
    for index, (name, kind, shape) in enumerate(tensors):
        infos += tensor_info(name, kind, shape, len(data))
        data = padded(data + bytes([index + 1]) * nbytes(kind, shape), alignment)
    head = header(len(tensors), len(keys), version) + b"".join(keys) + infos
    return padded(head, alignment) + data


def model_keys(name: str = "Tiny", *extra: Key, words: int = 100) -> list[Key]:
    """Keys of a language model; the vocabulary is long enough to be walked, not kept."""
    return [
        key("general.architecture", STRING, "llama"),
        key("general.name", STRING, name),
        key("general.file_type", U32, 3),
        key("llama.context_length", U32, 128),
        key("llama.block_count", U32, 2),
        key("tokenizer.ggml.add_bos_token", BOOL, True),
        array("tokenizer.ggml.tokens", STRING, [f"word{i}" * (i % 3) for i in range(words)]),
        array("tokenizer.ggml.scores", F32, [0.5] * 2000),
        array("general.languages", STRING, ["en", "fr"]),
        key("tokenizer.chat_template", STRING, "{{ messages }}"),
        *extra,
    ]


TENSORS: tuple[Tensor, ...] = (("token_embd.weight", 3, (64, 8)), ("output_norm.weight", 0, (64,)))


def tiny(name: str = "Tiny", *extra: Key, version: int = 3) -> bytes:
    """A small, whole model file; other names give other digests."""
    return build(model_keys(name, *extra), TENSORS, version=version)
