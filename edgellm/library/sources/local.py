"""A .gguf file that is already on this machine."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from edgellm.contracts.engine import ModelFile
from edgellm.errors import BadModelFile, NotFound
from edgellm.formats.gguf import read_model
from edgellm.library.staging import CHUNK, Meter, Report, Staged, require_space, write_hashed


def preflight(path: Path) -> ModelFile:
    """Check that the file is one whole, complete model. Raises NotFound, BadModelFile."""
    if not path.exists():
        raise NotFound(
            f"no file {path}",
            hint="check the path; models from the catalogue are pulled by name (`edgellm pull smollm2:135m`)",
            param="model",
        )
    model = read_model(path)
    parts = model.metadata.get("split.count", 0)
    if isinstance(parts, int) and parts > 1:
        raise BadModelFile(
            f"{path}: split.count is {parts}: this is one part of a model in {parts} files",
            hint="join the parts first (llama-gguf-split --merge), then import the one file",
        )
    require_model(model)
    return model


def require_model(model: ModelFile) -> None:
    """Refuse what is a GGUF file but no model by itself. Raises BadModelFile."""
    kind = model.metadata.get("general.type", "model")
    if kind == "mmproj" or model.architecture == "clip":
        raise BadModelFile(
            f"{model.path}: general.type is 'mmproj': it gives eyes to a model and is none itself",
            hint="name the model's own file; it stands beside this one",
        )
    if kind != "model":
        raise BadModelFile(f"{model.path}: general.type is {kind!r}, not 'model'", hint="name the model's own file")
    if not model.tensors:
        raise BadModelFile(
            f"{model.path}: tensor count is 0: there are no weights in it", hint="name a model's own file"
        )


def stage(path: Path, target: Path, report: Report) -> Staged:
    """Copy the file to `target`, hashing. The copy is deliberate: the original may be edited or moved later."""
    size = path.stat().st_size
    require_space(target.parent, size, f"importing {path.name}")
    return write_hashed(_chunks(path), target, Meter(report, "copy", size))


def _chunks(path: Path) -> Iterator[bytes]:
    with path.open("rb") as file:
        yield from iter(lambda: file.read(CHUNK), b"")
