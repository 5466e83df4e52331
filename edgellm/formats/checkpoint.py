"""A folder as model authors publish it: config.json and one or several safetensors files. Everything in it is data.

Nothing named in a configuration (auto_map, trust_remote_code) is ever imported, and pickled tensors are never opened.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final, NoReturn

import msgspec

from edgellm.errors import BadModelFile
from edgellm.formats.files import bad, opened
from edgellm.formats.safetensors import SafeTensor, SafetensorsFile, read_safetensors

INDEX: Final = "model.safetensors.index.json"
SINGLE: Final = "model.safetensors"
CONFIG: Final = "config.json"
MAX_CONFIG: Final = 1 << 22  # bytes
MAX_INDEX: Final = 1 << 25
MAX_FILES: Final = 1024
# What is refused: separators, drive letters, "..", hidden files, and names that Windows gives to devices.
_FILE_NAME: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_. +@=-]{0,200}\.safetensors")
_DEVICES: Final = re.compile(r"(?:con|prn|aux|nul|com[0-9]|lpt[0-9])(?:\..*)?", re.IGNORECASE)
_COMPLETE: Final = "get the whole model again: all of its .safetensors files, from one place"


class Checkpoint(msgspec.Struct, frozen=True):
    """A published model: what its configuration says, and where its tensors lie."""

    folder: Path
    config: dict[str, Any]
    files: tuple[SafetensorsFile, ...]

    def tensors(self) -> Iterator[tuple[SafetensorsFile, SafeTensor]]:
        """Every tensor with its file, file by file in the order of the data."""
        return ((file, tensor) for file in self.files for tensor in file.tensors)


def read_checkpoint(folder: Path) -> Checkpoint:
    """The checked headers of all files of the model in `folder`.

    Raises BadModelFile for a folder without safetensors, for files that are missing or damaged, for an index that
    does not fit them, and for a tensor in two files.
    """
    config = read_json(folder / CONFIG, MAX_CONFIG)
    index = folder / INDEX
    if index.exists():
        places = read_index(index)
        files = tuple(read_safetensors(folder / name) for name in sorted(set(places.values())))
        _require_agreement(index, places, files)
    else:
        files = (read_safetensors(_single(folder)),)
    held: dict[str, SafetensorsFile] = {}
    for file in files:
        for tensor in file.tensors:
            if tensor.name in held:
                _refuse(file.path, f"tensor {tensor.name}", "here", f"it is in {held[tensor.name].path.name}, too")
            held[tensor.name] = file
    return Checkpoint(folder, config, files)


def read_index(path: Path) -> dict[str, str]:
    """Tensor names and the files that hold them, from an index of shards; every name is that of a plain file beside it.

    Raises BadModelFile.
    """
    table = read_json(path, MAX_INDEX).get("weight_map")
    if not isinstance(table, dict) or not table:
        _refuse(path, "weight_map", type(table).__name__, "expected the tensors and their files")
    for tensor, name in table.items():
        if not isinstance(name, str) or not is_plain_name(name):
            _refuse(path, f"weight_map {tensor}", name, "expected the name of a .safetensors file beside the index")
    names = set(table.values())
    if len(names) > MAX_FILES:
        _refuse(path, "weight_map", f"{len(names)} files", f"at most {MAX_FILES}")
    return table


def is_plain_name(name: str) -> bool:
    """Whether `name` is a .safetensors file in the folder itself, on every system."""
    return bool(_FILE_NAME.fullmatch(name)) and ".." not in name and not _DEVICES.fullmatch(name)


def read_json(path: Path, limit: int) -> dict[str, Any]:
    """The JSON object in a file of at most `limit` bytes, as plain data. Raises BadModelFile, also for a key twice."""
    with opened(path, ".json") as (file, size):
        if size > limit:
            _refuse(path, "the file", f"{size} bytes long", f"at most {limit}")
        raw = file.read(limit + 1)
    return parse_json(path, raw[: limit + 1])


def parse_json(path: Path, raw: bytes) -> dict[str, Any]:
    """The JSON object that `raw` is; `path` only names it. Raises BadModelFile."""

    def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        if len(found) != len(pairs):
            names = [name for name, _ in pairs]
            twice = next(name for name in names if names.count(name) > 1)
            _refuse(path, "a key", twice, "it occurs twice")
        return found

    try:
        value = json.loads(raw.decode("utf-8-sig"), object_pairs_hook=once)
    except RecursionError:
        _refuse(path, "the JSON", "nested deeply", "no configuration needs that")
    except ValueError as error:  # JSON, UTF-8, a number of thousands of digits
        _refuse(path, "the JSON", str(error), "expected an object")
    if not isinstance(value, dict):
        _refuse(path, "the JSON", type(value).__name__, "expected an object")
    return value


def _single(folder: Path) -> Path:
    """The one safetensors file of a model without an index."""
    if (folder / SINGLE).exists():
        return folder / SINGLE
    there = sorted(path for path in folder.glob("*.safetensors") if not path.name.startswith("."))
    if len(there) == 1:
        return there[0]
    if there:
        _refuse(folder / INDEX, "the file", "absent", f"{len(there)} .safetensors files need one", _COMPLETE)
    pickled = next((path.name for kind in ("*.bin", "*.pt", "*.pth") for path in sorted(folder.glob(kind))), None)
    if pickled:
        raise BadModelFile(
            f"{folder}: holds {pickled} and no .safetensors",
            hint="pickled tensors can run code and are never opened; get the model as safetensors or GGUF",
        )
    raise BadModelFile(f"{folder}: holds no .safetensors", hint="name the folder of a model, or a .gguf file")


def _require_agreement(index: Path, places: Mapping[str, str], files: tuple[SafetensorsFile, ...]) -> None:
    held = {file.path.name: {tensor.name for tensor in file.tensors} for file in files}
    for tensor, name in places.items():
        if tensor not in held[name]:
            _refuse(index, f"weight_map {tensor}", name, "that file does not hold it", _COMPLETE)


def _refuse(path: Path, field: str, value: object, why: str, hint: str | None = None) -> NoReturn:
    raise bad(path, field, value, why, hint)
