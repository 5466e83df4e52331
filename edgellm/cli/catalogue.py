"""`edgellm list --catalogue`: what can be pulled by name. Asks nobody."""

from __future__ import annotations

from edgellm.cli.output import Output
from edgellm.library.catalogue import Catalogue, CatalogueEntry
from edgellm.library.store import Store
from edgellm.paths import default_paths
from edgellm.units import number, size

COLUMNS = ("NAME", "TITLE", "TYPE", ">SIZE", ">TRAINED", "LICENCE", "NOTE")
SPARE = ("TITLE", "LICENCE", "TRAINED", "TYPE", "NOTE")


def list_catalogue(*, json: bool, quiet: bool) -> None:
    """Print the entries, the smallest first; those whose size nobody knows last."""
    output = Output(json=json, quiet=quiet)
    paths = default_paths()
    entries = sorted(Catalogue.load(paths).entries(), key=lambda entry: (not entry.size, entry.size))
    here = {manifest.full_name for manifest in Store(paths).scan().manifests}
    if json:
        output.document({"catalogue": [_document(entry, here=entry.name in here) for entry in entries]})
    elif quiet:
        for entry in entries:
            output.line(str(entry.name))
    else:
        output.table(COLUMNS, [_row(entry, here=entry.name in here) for entry in entries], SPARE)


def _row(entry: CatalogueEntry, *, here: bool) -> list[str]:
    what = [word for word in entry.capabilities if word in ("code", "reasoning", "embeddings")]
    return [
        str(entry.name),
        entry.title,
        entry.quantization,
        size(entry.size) if entry.size else "–",
        number(entry.context) if entry.context else "–",
        entry.licence,
        ", ".join([*what, *(["here"] if here else [])]),
    ]


def _document(entry: CatalogueEntry, *, here: bool) -> dict[str, object]:
    return {
        "name": str(entry.name),
        "title": entry.title,
        "aliases": [str(alias) for alias in entry.aliases],
        "quantization": entry.quantization,
        "size": entry.size,
        "context": entry.context,
        "capabilities": list(entry.capabilities),
        "licence": entry.licence,
        "here": here,
    }
