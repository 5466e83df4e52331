"""From a folder to a GGUF file: everything is checked first, then the file is written as a stream."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple

from edgellm.errors import BadModelFile, InvalidRequest
from edgellm.library.convert import gguf_file, pooling
from edgellm.library.convert.architectures.known import ARCHITECTURES
from edgellm.library.convert.folder import Folder
from edgellm.library.convert.gguf_file import OutTensor
from edgellm.library.convert.rules import Architecture, Rule, dimensions
from edgellm.library.convert.tokenizers.read import read_vocabulary
from edgellm.library.convert.tokenizers.special import templates
from edgellm.library.convert.weights import TooLargeForF16, Weight, encoded

OutType = Literal["F32", "F16", "BF16"]
OUT_TYPES: Final[tuple[OutType, ...]] = ("F32", "F16", "BF16")
_OTHER: Final = "look for a GGUF of the model: `edgellm pull` takes that as it is"


class Conversion(NamedTuple):
    """A conversion that can be done: nothing of it is written yet.

    type    of most weights; norms, biases and routers stay F32
    size    bytes of the file
    notes   what the user should know of the result, in words
    """

    folder: Folder
    architecture: Architecture
    metadata: dict[str, Any]
    tensors: list[OutTensor]
    type: OutType
    notes: list[str]

    @property
    def head(self) -> bytes:
        return gguf_file.header(self.metadata, self.tensors)

    @property
    def size(self) -> int:
        return gguf_file.file_size(self.head, self.tensors)

    def chunks(self) -> Iterator[bytes]:
        """The file, a few megabytes at a time. Raises BadModelFile for weights that the type cannot hold."""
        yield self.head
        yield from gguf_file.data(self.tensors)


def plan_conversion(path: Path, out_type: OutType | None = None, *, called: str = "") -> Conversion:
    """Read everything but the weights of the model in the folder `path`, and check that they fit together.

    `out_type` None keeps the type that most weights have, so that nothing is lost. `called` is the model's name where
    the folder's says nothing.
    Raises NotFound, BadModelFile, InvalidRequest.
    """
    folder = Folder(path)
    architecture = _architecture(folder)
    sizes = architecture.sizes(folder.config)
    kind: OutType = out_type or _as_type(folder.main_type())
    tensors = _tensors(folder, architecture, sizes, kind)
    vocabulary = read_vocabulary(folder, sizes["v"])
    own = architecture.metadata(folder.config)
    notes = [*architecture.notes(folder.config), *vocabulary.notes]
    own |= pooling.metadata(folder, architecture.embeds, notes)
    metadata = _general(folder, architecture, kind, called or folder.name)
    metadata |= {f"{architecture.name}.{key}": value for key, value in own.items()}
    metadata |= vocabulary.metadata()
    if "t" in sizes:
        metadata["tokenizer.ggml.token_type_count"] = sizes["t"]
    metadata |= templates(folder)
    return Conversion(folder, architecture, metadata, tensors, kind, notes)


def parse_type(text: str) -> OutType:
    """ "bf16" as the user writes it. Raises InvalidRequest."""
    for known in OUT_TYPES:
        if text.upper() == known:
            return known
    raise InvalidRequest(
        f"{text} is not a type to convert to", hint="bf16, f16 or f32; smaller ones come by quantising", param="type"
    )


def _as_type(name: str) -> OutType:
    return next(known for known in OUT_TYPES if known == name)


# Which architecture


def _architecture(folder: Folder) -> Architecture:
    config = folder.config
    classes = config.get("architectures")
    name = classes[0] if isinstance(classes, list) and classes and isinstance(classes[0], str) else ""
    found = next((known for known in ARCHITECTURES if name in known.classes), None)
    if config.has("auto_map") and (found is None or not _same_classes(config.get("auto_map"), name)):
        raise BadModelFile(
            f"{config.path}: auto_map: the model comes with a program of its own, which alone knows how to run it",
            hint=f"programs of models are never run here; {_OTHER}",
        )
    if found is None:
        known = ", ".join(sorted({known.classes[0] for known in ARCHITECTURES}))
        raise BadModelFile(
            f"{config.path}: architectures is {name or 'absent'}: it cannot be converted (known are {known})",
            hint=_OTHER,
        )
    return found


def _same_classes(auto_map: Any, name: str) -> bool:
    """Whether a model only names, in files of its own, the classes that transformers has built in since: what Phi 3
    does. The files are not looked at; the weights must fit the known architecture all the same.
    """
    stem = re.sub(r"(ForCausalLM|Model)$", "", name)
    module = stem.lower()
    allowed = {f"configuration_{module}.{stem}Config", f"modeling_{module}.{name}"}
    return isinstance(auto_map, dict) and all(str(value).rsplit("--", 1)[-1] in allowed for value in auto_map.values())


# Which tensors


def _tensors(folder: Folder, architecture: Architecture, sizes: dict[str, int], kind: OutType) -> list[OutTensor]:
    stored: dict[str, str] = {}
    for original in folder.tensors:
        if not re.fullmatch(architecture.ignored, original):
            stored[architecture.source_name(original)] = original
    stored = {name: original for name, original in stored.items() if not re.fullmatch(architecture.ignored, name)}
    if folder.config.flag("tie_word_embeddings", False):
        stored.pop("lm_head.weight", None)  # the same numbers as the embedding
    used: set[str] = set()
    found: dict[str, OutTensor] = {}
    missing: dict[str, str] = {}
    for rule in architecture.rules:
        for layer in range(sizes["layers"]) if rule.per_layer else (0,):
            target = rule.target.replace("{}", str(layer))
            names = _sources(rule, layer, sizes)
            here = [name for name in names if name in stored]
            if target in found or not here:
                if not rule.optional and target not in found:
                    missing.setdefault(target, names[0])
                continue
            absent = next((name for name in names if name not in stored), None)
            if absent is not None:
                raise _missing(folder, absent)
            used.update(names)
            found[target] = _tensor(folder, [stored[name] for name in names], rule, target, sizes, kind)
    for target, source in missing.items():
        if target not in found:
            raise _missing(folder, source)
    _refuse_unknown(folder, stored, used)
    for name, weight in architecture.extra(folder.config).items():
        found[name] = _out(name, weight, "F32", str(folder.config.path))
    return list(found.values())


def _sources(rule: Rule, layer: int, sizes: dict[str, int]) -> list[str]:
    name = rule.source.replace("{}", str(layer))
    return [name.replace("{e}", str(expert)) for expert in range(sizes["experts"])] if rule.per_expert else [name]


def _tensor(
    folder: Folder, names: list[str], rule: Rule, target: str, sizes: dict[str, int], kind: OutType
) -> OutTensor:
    expected = dimensions(rule.shape, sizes)
    for name in names:
        if folder.tensors[name].shape != expected:
            raise BadModelFile(
                f"{folder.where(name)}: its shape is {folder.tensors[name].shape}; by config.json it is {expected}",
                hint="weights and config.json are not of one model, or are damaged: fetch both again",
            )
    weights = [folder.weight(name) for name in names]
    if any(each.dtype != weights[0].dtype for each in weights):
        raise BadModelFile(f"{folder.where(names[0])}: its like are of other types", hint=_OTHER)
    stacked = Weight(tuple(part for each in weights for part in each.parts), weights[0].dtype)
    weight = rule.change(stacked, folder.config)
    out_type = "F32" if rule.exact or len(weight.shape) == 1 else kind
    return _out(target, weight, out_type, folder.where(names[0]))


def _out(target: str, weight: Weight, out_type: str, source: str) -> OutTensor:
    return OutTensor(target, out_type, weight.shape[::-1], partial(_encoded, weight, out_type, source))


def _encoded(weight: Weight, kind: str, source: str) -> Iterator[bytes]:
    try:
        yield from encoded(weight, kind)
    except TooLargeForF16 as error:
        raise BadModelFile(
            f"{source}: holds {error}, beyond what F16 can hold (65,504)", hint="convert to bf16 or f32: --type bf16"
        ) from error


def _missing(folder: Folder, name: str) -> BadModelFile:
    return BadModelFile(
        f"{folder.path}: tensor {name} is missing from the weights",
        hint="the download may be incomplete, or config.json of another model: fetch it again",
    )


def _refuse_unknown(folder: Folder, stored: dict[str, str], used: set[str]) -> None:
    unknown = sorted(stored[name] for name in stored if name not in used)
    if unknown:
        more = f" and {len(unknown) - 1} more" if len(unknown) > 1 else ""
        raise BadModelFile(
            f"{folder.where(unknown[0])}{more}: not a part of "
            f"{folder.config.get('architectures')[0]} as it is known here",
            hint=f"leaving it out would change the answers. {_OTHER}",
        )


# What is said of the model


def _general(folder: Folder, architecture: Architecture, kind: OutType, name: str) -> dict[str, Any]:
    metadata: dict[str, Any] = {
        "general.architecture": architecture.name,
        "general.type": "model",
        "general.name": name,
        "general.file_type": gguf_file.FILE_TYPES[kind],
    }
    licence = _licence(folder)
    if licence:
        metadata["general.license"] = licence
    return metadata


def _licence(folder: Folder) -> str:
    """As the model card's head says it."""
    card = folder.file("README.md")
    if card is None:
        return ""
    with card.open(encoding="utf-8", errors="replace") as file:
        head = re.match(r"---\n(.*?)\n---", file.read(1 << 16), re.DOTALL)
    said = re.search(r"^license:\s*[\"']?([\w.+-]{1,60})[\"']?\s*$", head.group(1), re.MULTILINE) if head else None
    return said.group(1) if said else ""
