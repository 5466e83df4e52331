"""Models in several GGUF files, as llama.cpp's gguf-split writes them.

Every part is a GGUF file of its own with `split.no` (from 0), `split.count` and, over all parts, `split.tensors.count`.
The first holds the model's metadata and may hold no tensor; the names end in "-00001-of-00003.gguf".
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, NoReturn

import msgspec

from edgellm.contracts.engine import ModelFile, TensorInfo
from edgellm.formats.files import bad

MAX_PARTS: Final = 9999
_NAME: Final = re.compile(r"(?P<stem>.*)-(?P<number>\d{5})-of-(?P<count>\d{5})\.gguf", re.IGNORECASE | re.DOTALL)
_COMPLETE: Final = "get all parts of the model, from the same place"


class Part(msgspec.Struct, frozen=True):
    """Which part of a split model a file is: `number` from 0, `count` of them, `tensors` over all."""

    number: int
    count: int
    tensors: int


def part_of(model: ModelFile) -> Part | None:
    """The part that `model` says it is; None for a model in one file. Raises BadModelFile for numbers out of range."""
    count = model.metadata.get("split.count", 0)
    if count in (0, 1):
        return None
    if type(count) is not int or not 1 < count <= MAX_PARTS:
        _refuse(model, "split.count", count, f"expected a number up to {MAX_PARTS}")
    number = model.metadata.get("split.no")
    if type(number) is not int or not 0 <= number < count:
        _refuse(model, "split.no", "absent" if number is None else number, f"expected a number from 0 to {count - 1}")
    tensors = model.metadata.get("split.tensors.count")
    if type(tensors) is not int or tensors < len(model.tensors):
        told = "absent" if tensors is None else tensors
        _refuse(model, "split.tensors.count", told, f"this part alone holds {len(model.tensors)}")
    return Part(number, count, tensors)


def part_names(name: str) -> list[str] | None:
    """The names of all parts, first to last, from that of any one; None for a name that is not of a part."""
    found = _NAME.fullmatch(name)
    if found is None or not 1 <= int(found["number"]) <= int(found["count"]) <= MAX_PARTS:
        return None
    count = int(found["count"])
    return [f"{found['stem']}-{number:05d}-of-{count:05d}{name[-5:]}" for number in range(1, count + 1)]


def join(parts: Sequence[ModelFile]) -> ModelFile:
    """One model of all its parts, given in any order; `more` names the files after the first.

    A single file that is no part is returned as it is. Raises BadModelFile when parts are missing, occur twice, are of
    different models, or do not hold the tensors they promise.
    """
    if not parts:
        raise ValueError("no parts")
    if len(parts) == 1 and part_of(parts[0]) is None:
        return parts[0]
    places = [(part_of(model), model) for model in parts]
    ordered: dict[int, ModelFile] = {}
    first_place = places[0][0]
    for place, model in places:
        if place is None or first_place is None:
            stray = model if place is None else parts[0]
            _refuse(stray, "split.count", "absent", "the file is no part of a split model", _COMPLETE)
        if (place.count, place.tensors) != (first_place.count, first_place.tensors):
            _refuse(model, "split.count", place.count, f"part of another model than {parts[0].path.name}", _COMPLETE)
        if place.number in ordered:
            _refuse(model, "split.no", place.number, f"{ordered[place.number].path.name} is that part, too", _COMPLETE)
        ordered[place.number] = model
    assert first_place is not None
    missing = [str(number + 1) for number in range(first_place.count) if number not in ordered]
    if missing:
        told = ", ".join(missing[:5]) + (" …" if len(missing) > 5 else "")
        _refuse(parts[0], "split.count", first_place.count, f"missing of these parts: {told}", _COMPLETE)
    return _joined([ordered[number] for number in range(first_place.count)], first_place.tensors)


def _joined(parts: list[ModelFile], promised: int) -> ModelFile:
    first = parts[0]
    tensors: list[TensorInfo] = []
    held: dict[str, ModelFile] = {}
    for number, model in enumerate(parts):
        if model.architecture not in ("", first.architecture):
            _refuse(model, "general.architecture", model.architecture, f"the first part's is {first.architecture}")
        for tensor in model.tensors:
            if tensor.name in held:
                _refuse(model, f"tensor {tensor.name}", "here", f"it is in {held[tensor.name].path.name}, too")
            held[tensor.name] = model
            tensors.append(msgspec.structs.replace(tensor, file=number))
    if len(tensors) != promised:
        _refuse(first, "split.tensors.count", promised, f"the parts hold {len(tensors)}")
    return msgspec.structs.replace(
        first,
        size=sum(model.size for model in parts),
        tensors=tuple(tensors),
        more=tuple(model.path for model in parts[1:]),
    )


def _refuse(model: ModelFile, field: str, value: Any, why: str, hint: str | None = None) -> NoReturn:
    raise bad(model.path, field, value, why, hint)


def part_paths(path: Path) -> list[Path]:
    """Where the parts of the split model lie that `path` belongs to, by their names; `path` alone if it is no part."""
    names = part_names(path.name)
    return [path] if names is None else [path.with_name(name) for name in names]
