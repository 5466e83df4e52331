"""Models that Ollama has on this machine: found by their manifests, linked into the store instead of copied.

Ollama's store: manifests/<registry>/<namespace>/<model>/<tag> (JSON naming layers by digest and media type) and
blobs/sha256-<hex>. Blobs are never changed in place, so a hard link stays what it was verified to be, even after
Ollama forgets the model; on another disk it is a symbolic link, which then ends.
"""

from __future__ import annotations

import difflib
import os
import re
from pathlib import Path
from typing import Any, Final

import msgspec

from edgellm.contracts.request import Sampling
from edgellm.errors import UNREADABLE, ChecksumMismatch, LibraryError, NotFound
from edgellm.library.names import ModelName, name_from_file
from edgellm.library.staging import Meter, Report, Staged, hash_file, require_space, write_hashed
from edgellm.paths import expanded
from edgellm.small_files import open_regular, read_small

_REGISTRY: Final = "registry.ollama.ai"
_NAMESPACE: Final = "library"
_PART: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,127}")
_DIGEST: Final = re.compile(r"sha256:[0-9a-f]{64}")
_LARGEST_JSON: Final = 1 << 20
_KIND: Final = "application/vnd.ollama.image."


class OllamaModel(msgspec.Struct, frozen=True):
    """A model in Ollama's store."""

    full_name: str  # as Ollama calls it
    name: ModelName  # as it can be called here
    path: Path
    digest: str
    size: int
    licence: str
    sampling: Sampling


class _Layer(msgspec.Struct):
    mediaType: str  # noqa: N815 - Ollama's spelling
    digest: str
    size: int


class _Manifest(msgspec.Struct):
    layers: list[_Layer]


def folder() -> Path:
    """Where Ollama keeps models: OLLAMA_MODELS, the user's own folder, or that of the Linux service."""
    named = os.environ.get("OLLAMA_MODELS")
    if named:
        return expanded(named)
    own = expanded("~/.ollama/models")
    service = Path("/usr/share/ollama/.ollama/models")
    return service if not own.is_dir() and service.is_dir() else own


def find(text: str) -> OllamaModel:
    """The model that Ollama knows as `text`. Raises NotFound with what it has, LibraryError when that is damaged."""
    root = folder()
    parts = _parts(text)
    path = root.joinpath("manifests", *parts) if parts else None
    if path is None or not path.is_file():
        raise _not_found(text, root)
    layers = _read(path, _Manifest).layers
    models = [layer for layer in layers if layer.mediaType == _KIND + "model"]
    if len(models) != 1:
        raise LibraryError(f"{path} names {len(models)} model files", hint="pull the model from a hub instead")
    assert parts is not None
    model, short = models[0], f"{parts[-2]}:{parts[-1]}"
    name = name_from_file(parts[-2])
    tag = name_from_file(parts[-1])
    if name is None or tag is None:
        raise NotFound(f"{short} cannot be a name here", hint="give another with --name", param="name")
    return OllamaModel(
        short,
        ModelName(name.name, tag.name),
        _blob(root, model.digest),
        model.digest,
        model.size,
        _licence(root, layers),
        _sampling(root, layers),
    )


def stage(model: OllamaModel, target: Path, report: Report) -> Staged:
    """Verify the file where it lies and link it as `target`: hard, symbolic on another disk, a copy where neither goes.

    Raises ChecksumMismatch, DiskFull.
    """
    digest = hash_file(model.path, Meter(report, "verify", model.size))
    if digest != model.digest:
        raise ChecksumMismatch(
            f"{model.path} is not what its name says: its digest is {digest}",
            hint=f"mend it there (ollama pull {model.full_name}), or pull the model from a hub",
        )
    target.unlink(missing_ok=True)
    for link in (target.hardlink_to, target.symlink_to):
        try:
            link(model.path.resolve())
        except OSError:  # another disk, a system without links, links that are not allowed
            continue
        return Staged(target, digest, model.size)
    require_space(target.parent, model.size, f"importing {model.full_name}")
    with model.path.open("rb") as file:
        return write_hashed(iter(lambda: file.read(1 << 20), b""), target, Meter(report, "copy", model.size))


def names() -> list[str]:
    """What Ollama has, as it calls it."""
    root = folder() / "manifests"
    found = []
    for path in root.glob("*/*/*/*"):
        registry, namespace, model, tag = path.relative_to(root).parts
        prefix = "" if (registry, namespace) == (_REGISTRY, _NAMESPACE) else f"{registry}/{namespace}/"
        found.append(f"{prefix}{model}:{tag}")
    return sorted(found)


def _parts(text: str) -> tuple[str, ...] | None:
    """Registry, namespace, model and tag of a name; None for what is none."""
    path, _, tag = text.rpartition(":") if ":" in text.rsplit("/", 1)[-1] else (text, "", "latest")
    given = path.split("/")
    if not 1 <= len(given) <= 3:
        return None
    parts = ((_REGISTRY, _NAMESPACE)[: 3 - len(given)] + tuple(given)) + (tag,)
    return parts if all(_PART.fullmatch(part) and part not in (".", "..") for part in parts) else None


def _not_found(text: str, root: Path) -> NotFound:
    if not (root / "manifests").is_dir():
        return NotFound(
            f"Ollama has no models in {root}", hint="OLLAMA_MODELS names the folder if it is another", param="model"
        )
    there = names()
    near = difflib.get_close_matches(text, there, n=1, cutoff=0.5)
    listed = "it has " + ", ".join(there[:12]) if there else "it has none"
    hint = f"did you mean ollama:{near[0]}? {listed}" if near else listed
    return NotFound(f"Ollama has no model {text or 'without a name'}", hint=hint, param="model")


def _blob(root: Path, digest: str) -> Path:
    if not _DIGEST.fullmatch(digest):
        raise LibraryError(f"a digest in Ollama's store is {digest[:80]!r}", hint="pull the model from a hub instead")
    return root / "blobs" / digest.replace(":", "-")


def _read(path: Path, kind: Any) -> Any:
    try:
        return msgspec.json.decode(read_small(path, _LARGEST_JSON), type=kind)
    except (OSError, *UNREADABLE) as error:
        raise LibraryError(f"{path}: {error}", hint="pull the model from a hub instead") from error


def _licence(root: Path, layers: list[_Layer]) -> str:
    """The first line of the licence that came with the model."""
    for layer in layers:
        if layer.mediaType == _KIND + "license":
            try:
                with open_regular(_blob(root, layer.digest)) as file:
                    lines = file.read(4096).decode(errors="replace").split("\n")
            except OSError:
                continue
            title = next((line.strip() for line in lines if line.strip()), "")
            return "".join(c for c in title if c.isprintable())[:100]
    return ""


def _sampling(root: Path, layers: list[_Layer]) -> Sampling:
    """What the model's params layer recommends, as far as it is in range."""
    for layer in layers:
        if layer.mediaType == _KIND + "params":
            try:
                given = _read(_blob(root, layer.digest), dict)
            except LibraryError:
                continue
            return Sampling(
                temperature=_number(given, "temperature", 0, 10),
                top_p=_number(given, "top_p", 1e-9, 1),
                top_k=int(top_k) if (top_k := _number(given, "top_k", 0, 10**6)) is not None else None,
                min_p=_number(given, "min_p", 0, 1),
            )
    return Sampling()


def _number(given: dict[str, Any], key: str, least: float, most: float) -> float | None:
    value = given.get(key)
    ok = isinstance(value, int | float) and not isinstance(value, bool) and least <= value <= most
    return value if ok else None
