"""Real models cut to their first layers: real vocabularies and weights, quick to run. What they say is nonsense."""

from __future__ import annotations

import struct
from pathlib import Path

from gguf_files import U32, key, string, tensor_info

from edgellm.contracts.engine import ModelFile
from edgellm.formats.gguf import read_model
from edgellm.formats.gguf_types import TENSOR_TYPES

_ALIGNMENT = 32
_START = 24  # of the first key


def shortened(path: Path, layers: int, folder: Path) -> Path:
    """The GGUF at `path` with its first `layers` layers, written to `folder`."""
    model = read_model(path)
    raw = path.read_bytes()
    keys = raw[_START : _table(raw, model)]
    name = f"{model.architecture}.block_count"
    before, after = key(name, U32, model.metadata[name]), key(name, U32, layers)
    assert keys.count(before) == 1
    kept = [tensor for tensor in model.tensors if _layer(tensor.name) < layers]
    numbers = {kind.name: number for number, kind in TENSOR_TYPES.items()}
    infos, data = b"", b""
    for tensor in kept:
        infos += tensor_info(tensor.name, numbers[tensor.type], tensor.shape, len(data))
        data += raw[tensor.offset : tensor.offset + tensor.nbytes]
        data += bytes(-len(data) % _ALIGNMENT)
    (count,) = struct.unpack_from("<Q", raw, 16)
    head = b"GGUF" + struct.pack("<IQQ", 3, len(kept), count) + keys.replace(before, after) + infos
    target = folder / f"{layers}-layers-of-{path.name}"
    target.write_bytes(head + bytes(-len(head) % _ALIGNMENT) + data)
    return target


def _table(raw: bytes, model: ModelFile) -> int:
    """Where the tensor table begins: with the name of the file's first tensor."""
    first = min(model.tensors, key=lambda tensor: tensor.offset)
    return raw.index(string(first.name))


def _layer(name: str) -> int:
    """The layer that a tensor belongs to; -1: to none."""
    parts = name.split(".")
    return int(parts[1]) if parts[0] == "blk" else -1
