"""Which files of a repository make one model: quantisations, split files, what is no model by itself. Pure."""

from __future__ import annotations

import difflib
import re
from collections.abc import Sequence
from typing import Final

import msgspec

from edgellm.errors import InvalidRequest, NotFound
from edgellm.library.sources.hub import HubFile
from edgellm.units import size

_LABEL: Final = re.compile(
    r"(?<![A-Za-z0-9])(?:UD[-_])?((?:I?Q|TQ)[1-8](?:_[A-Z0-9]+)*|MXFP4(?:_MOE)?|NVFP4|BF16|F16|FP16|F32|FP32)(?![A-Za-z0-9])",
    re.IGNORECASE,
)
_PART: Final = re.compile(r"(.+)-(\d{5})-of-(\d{5})\.gguf", re.IGNORECASE)
_PROJECTOR: Final = re.compile(r"(?:^|[/._-])mmproj(?:[._-]|$)", re.IGNORECASE)
_NO_MODEL: Final = re.compile(r"(?:^|[/._-])(?:imatrix|lora|adapter|control[-_]?vector)(?:[._-]|$)", re.IGNORECASE)
_FULL: Final = frozenset({"BF16", "F16", "F32"})  # twice the bytes of Q8_0 and more, for nothing that anyone can read
_SHOWN: Final = 12


class Choice(msgspec.Struct, frozen=True):
    """One model of a repository: its file, or the parts of it in order."""

    quantization: str  # "Q4_K_M"; empty where the file name does not say
    files: tuple[HubFile, ...]

    @property
    def size(self) -> int:
        """Bytes over all parts."""
        return sum(file.size for file in self.files)

    @property
    def name(self) -> str:
        """The first file's."""
        return self.files[0].path

    @property
    def full(self) -> bool:
        """Whether nothing is quantised."""
        return self.quantization in _FULL


class Offer(msgspec.Struct, frozen=True):
    """What a repository has. `broken`: split models that lack parts, by their first name."""

    choices: tuple[Choice, ...]  # smallest first
    projectors: tuple[HubFile, ...]
    broken: dict[str, str]


def offer(files: Sequence[HubFile]) -> Offer:
    """The models among a repository's files."""
    singles: list[Choice] = []
    projectors: list[HubFile] = []
    parts: dict[tuple[str, int], dict[int, HubFile]] = {}
    for file in files:
        if not file.path.lower().endswith(".gguf") or _NO_MODEL.search(file.path):
            continue
        part = _PART.fullmatch(file.path)
        if _PROJECTOR.search(file.path):
            projectors.append(file)
        elif part is not None and int(part[3]) > 1:
            parts.setdefault((part[1], int(part[3])), {})[int(part[2])] = file
        else:
            singles.append(Choice(label(file.path), (file,)))
    broken = {}
    for (stem, count), found in parts.items():
        missing = [number for number in range(1, count + 1) if number not in found]
        if missing:
            broken[stem] = ", ".join(map(str, missing)) + f" of {count}"
        else:
            singles.append(Choice(label(stem), tuple(found[number] for number in range(1, count + 1))))
    ordered = sorted(singles, key=lambda choice: (choice.size, choice.name))
    return Offer(tuple(ordered), tuple(projectors), broken)


def label(path: str) -> str:
    """The quantisation in a file's name, or else in its folder's: "Q4_K_M"; empty where there is none."""
    for text in reversed(path.removesuffix(".gguf").split("/")):
        found = _LABEL.findall(text)
        if found:
            plain: str = found[-1].upper()
            return {"FP16": "F16", "FP32": "F32"}.get(plain, plain)
    return ""


def named(found: Offer, selector: str, repo: str) -> Choice:
    """The choice that `selector` (a quantisation or a file) names. Raises NotFound, InvalidRequest."""
    wanted = selector.lower()
    if wanted == "?":
        raise InvalidRequest(f"name one of the files of {repo}", hint=_listed(found), param="model")
    _refuse_broken(found, wanted, repo)
    by_file = [each for each in found.choices if any(_is_file(file, wanted) for file in each.files)]
    by_label = [each for each in found.choices if each.quantization.lower() == wanted]
    by_part = [each for each in found.choices if _contains(each.name, wanted)]
    for matches in (by_file, by_label, by_part):
        if len(matches) == 1:
            return matches[0]
        if matches:
            plain = [each for each in matches if not re.search(r"(?<![A-Za-z0-9])UD[-_]", each.name)]
            if len(plain) == 1:
                return plain[0]
            names = ", ".join(f"hf:{repo}:{each.name}" for each in matches[:_SHOWN])
            raise InvalidRequest(f"{repo} has several files for {selector}", hint=f"name one: {names}", param="model")
    if any(_is_file(file, wanted) for file in found.projectors):
        raise InvalidRequest(
            f"{selector} is no model: it gives eyes to one (a projector)", hint=_listed(found), param="model"
        )
    labels = [each.quantization for each in found.choices if each.quantization]
    near = difflib.get_close_matches(selector.upper(), labels, n=1, cutoff=0.5)
    hint = f"did you mean hf:{repo}:{near[0]}? {_listed(found)}" if near else _listed(found)
    raise NotFound(f"{repo} has no {selector}", hint=hint, param="model")


def _refuse_broken(found: Offer, wanted: str, repo: str) -> None:
    for stem, missing in found.broken.items():
        if wanted in (label(stem).lower(), stem.lower()) or wanted.startswith(stem.lower()):
            raise NotFound(
                f"{stem} in {repo} lacks parts {missing}", hint=f"a split model is all or nothing. {_listed(found)}"
            )


def _is_file(file: HubFile, wanted: str) -> bool:
    path = file.path.lower()
    return wanted in (path, path.rsplit("/", 1)[-1], path.removesuffix(".gguf"))


def _contains(path: str, wanted: str) -> bool:
    return bool(re.search(rf"(?<![a-z0-9]){re.escape(wanted)}(?![a-z0-9])", path.lower()))


def _listed(found: Offer) -> str:
    if not found.choices:
        return "it has no whole model in GGUF form"
    shown = [f"{each.quantization or each.name} ({size(each.size)})" for each in found.choices]
    return "it has " + ", ".join(shown[:_SHOWN]) + (" …" if len(shown) > _SHOWN else "")
