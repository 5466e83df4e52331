"""A model's published folder, converted on its way into the store."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from edgellm.contracts.request import Sampling
from edgellm.errors import InvalidRequest
from edgellm.formats.gguf import read_model
from edgellm.library.finish import Card, already, describe, publish
from edgellm.library.jobs import job
from edgellm.library.manifest import MODEL_ROLE, Manifest, StoredFile
from edgellm.library.names import ModelName, name_from_file
from edgellm.library.remote import Announcement, Context
from edgellm.library.staging import PullProgress
from edgellm.library.store import Store

if TYPE_CHECKING:
    from edgellm.library.convert.convert import Conversion


def pull_folder(
    path: Path, wanted: ModelName | None, context: Context, *, source: str = "", called: str = ""
) -> tuple[Manifest, bool]:
    """Convert the model in `path` and store it as `wanted`; the manifest, and whether the same was there before.

    source   where the folder comes from, when that is not the path itself
    called   the model's name, when that is not the folder's

    Raises NotFound, BadModelFile, InvalidRequest, DiskFull, LibraryError.
    """
    from edgellm.library.convert.convert import plan_conversion
    from edgellm.library.convert.write import stage

    report, paths = context.report, context.paths
    report(PullProgress("resolve"))
    conversion = plan_conversion(path, called=called)
    title = called or conversion.folder.name
    name = wanted or name_from_file(title)
    if name is None:
        raise InvalidRequest(f"no model name can be made of {title}", hint="give one with --name", param="name")
    source = source or f"folder:{path.resolve()}".encode(errors="replace").decode()
    card = Card(title, _licence(conversion), _sampling(conversion))
    told = f"{conversion.type}, converted from its folder"
    context.announce(Announcement(name, told, conversion.size, 0, card, notes=tuple(conversion.notes)))
    store = Store(paths)
    store.refuse_conflict(name, (StoredFile(MODEL_ROLE, f"sha256:{'0' * 64}", conversion.size, source),))
    with job(paths, hashlib.sha256(source.encode()).hexdigest(), report) as folder:
        staged = stage(conversion, folder / "file", report)
        file = StoredFile(MODEL_ROLE, staged.digest, staged.size, source)
        there = already(store, name, file)
        if there is not None:
            return there, True

        def described(stored: Path) -> Manifest:
            model = msgspec.structs.replace(read_model(stored), path=Path(title))
            return describe(name, (file,), model, card)

        return publish(store, file, staged, described, report), False


def _licence(conversion: Conversion) -> str:
    return str(conversion.metadata.get("general.license", ""))


def _sampling(conversion: Conversion) -> Sampling:
    """As generation_config.json recommends it; what it says out of range is as good as not said."""
    said = conversion.folder.generation
    if said.get("do_sample") is False:
        return Sampling()
    temperature, top_p, top_k = said.get("temperature"), said.get("top_p"), said.get("top_k")
    return Sampling(
        temperature=float(temperature) if isinstance(temperature, int | float) and 0 < temperature <= 2 else None,
        top_p=float(top_p) if isinstance(top_p, int | float) and 0 < top_p <= 1 else None,
        top_k=top_k if type(top_k) is int and 0 <= top_k < 1 << 31 else None,
    )
