"""Writes the GGUF format, as a stream: the header first, then each tensor's bytes as they are asked for.

Source: the GGUF specification, https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

import numpy as np

ALIGNMENT: Final = 32
VERSION: Final = 3
TYPES: Final = {"F32": (0, 4), "F16": (1, 2), "BF16": (30, 2)}  # number in the file, bytes per element
FILE_TYPES: Final = {"F32": 0, "F16": 1, "BF16": 32}

_U8, _U32, _I32, _F32, _BOOL, _STRING, _ARRAY = 0, 4, 5, 6, 7, 8, 9


class F32(float):
    """A number to be stored as F32. Plain ints are stored as U32, plain floats as F32 too."""


class OutTensor(NamedTuple):
    """A tensor of the file to be. `shape` is in the file's order: fastest first."""

    name: str
    type: str
    shape: tuple[int, ...]
    chunks: Callable[[], Iterator[bytes]]

    @property
    def nbytes(self) -> int:
        return int(np.prod(self.shape, dtype=object)) * TYPES[self.type][1]


def header(metadata: Mapping[str, Any], tensors: Sequence[OutTensor]) -> bytes:
    """Everything before the tensor data, padded. Values: str, bool, int, float, bytes, lists of one of these."""
    parts = [b"GGUF", struct.pack("<IQQ", VERSION, len(tensors), len(metadata))]
    for key, value in metadata.items():
        parts += [_string(key), _value(value)]
    offset = 0
    for tensor in tensors:
        number = TYPES[tensor.type][0]
        dims = len(tensor.shape)
        parts += [_string(tensor.name), struct.pack(f"<I{dims}QIQ", dims, *tensor.shape, number, offset)]
        offset += _padded(tensor.nbytes)
    head = b"".join(parts)
    return head + bytes(_padded(len(head)) - len(head))


def file_size(head: bytes, tensors: Iterable[OutTensor]) -> int:
    """Bytes of the whole file."""
    return len(head) + sum(_padded(tensor.nbytes) for tensor in tensors)


def data(tensors: Iterable[OutTensor]) -> Iterator[bytes]:
    """The tensors' bytes, each padded. Raises ValueError where a tensor yields more or fewer than it said."""
    for tensor in tensors:
        size = 0
        for chunk in tensor.chunks():
            size += len(chunk)
            yield chunk
        if size != tensor.nbytes:
            raise ValueError(f"{tensor.name} has {size} bytes, announced were {tensor.nbytes}")
        if padding := _padded(size) - size:
            yield bytes(padding)


def _padded(size: int) -> int:
    return -(-size // ALIGNMENT) * ALIGNMENT


def _string(text: str) -> bytes:
    raw = text.encode()
    return struct.pack("<Q", len(raw)) + raw


def _value(value: Any) -> bytes:
    if isinstance(value, bytes):
        return struct.pack("<IIQ", _ARRAY, _U8, len(value)) + value
    if isinstance(value, list):
        kind = _kind(value[0])
        body = b"".join(map(_string, value)) if kind == _STRING else _numbers(kind, value)
        return struct.pack("<IIQ", _ARRAY, _I32 if kind == _U32 else kind, len(value)) + body
    kind = _kind(value)
    return struct.pack("<I", kind) + (_string(value) if kind == _STRING else _scalar(kind, value))


def _kind(value: Any) -> int:
    if isinstance(value, bool):
        return _BOOL
    if isinstance(value, int):
        return _U32
    if isinstance(value, float):
        return _F32
    if isinstance(value, str):
        return _STRING
    raise TypeError(f"GGUF metadata cannot hold {type(value).__name__}")


def _scalar(kind: int, value: Any) -> bytes:
    return struct.pack({_BOOL: "<?", _U32: "<I", _F32: "<f"}[kind], value)


def _numbers(kind: int, values: list[Any]) -> bytes:
    return np.asarray(values, {_BOOL: "<u1", _U32: "<i4", _F32: "<f4"}[kind]).tobytes()
