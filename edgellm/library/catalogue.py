"""The catalogue: what can be pulled by name. Shipped in models.toml (whose header documents the form), with the user's
own models.toml laid over it.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import edgellm
from edgellm.errors import LibraryError
from edgellm.library.catalogue_file import CatalogueEntry, HubSource, PypiSource, entry_of, laid_over, read_tables
from edgellm.library.names import ModelName
from edgellm.paths import Paths

__all__ = ["STARTER", "Catalogue", "CatalogueEntry", "HubSource", "PypiSource", "near_misses"]

STARTER: Final = "smollm2:135m"  # what a newcomer is offered: small, and it comes from a package index


class Catalogue:
    """Entries by name and alias. An exact name wins over an alias; the user's alias over a shipped one."""

    def __init__(self, entries: Mapping[ModelName, CatalogueEntry], aliases: Mapping[ModelName, ModelName]) -> None:
        self._entries = dict(entries)
        self._aliases = dict(aliases)

    @staticmethod
    def load(paths: Paths) -> Catalogue:
        """The shipped catalogue with the user's over it. Raises ConfigError naming file and key."""
        shipped = _shipped_file()
        tables = read_tables(shipped)
        origin = dict.fromkeys(tables, shipped)
        overlay = paths.catalogue_overlay
        if overlay.exists():
            for key, table in read_tables(overlay).items():
                tables[key] = laid_over(table, tables.get(key, {}))
                origin.pop(key, None)  # moved to the end: the user's aliases are noted last
                origin[key] = overlay
        entries = [entry_of(file, key, tables[key]) for key, file in origin.items()]
        aliases = {alias: entry.name for entry in entries for alias in entry.aliases}
        return Catalogue({entry.name: entry for entry in entries}, aliases)

    def get(self, name: ModelName) -> CatalogueEntry | None:
        """The entry of that name or alias."""
        return self._entries.get(name) or self._entries.get(self._aliases.get(name, name))

    def entries(self) -> list[CatalogueEntry]:
        """All entries, by name."""
        return [self._entries[name] for name in sorted(self._entries)]

    def near(self, text: str) -> list[str]:
        """Names and aliases spelt much like `text`, nearest first."""
        return near_misses(text, (*self._entries, *self._aliases))


def near_misses(text: str, names: tuple[ModelName, ...]) -> list[str]:
    """At most three of `names` spelt much like `text`, nearest first."""
    spelt = {str(name): None for name in names} | {name.name: None for name in names if name.tag == "latest"}
    found = difflib.get_close_matches(text.lower(), spelt, n=4, cutoff=0.6)
    # `smollm2` and `smollm2:latest` are one name: show the short form only.
    return [name for name in found if name.removesuffix(":latest") == name or name[:-7] not in found][:3]


def _shipped_file() -> Path:
    """models.toml inside the package (a wheel) or beside it (an editable install)."""
    package = Path(edgellm.__file__).parent
    for folder in (package, package.parent):
        if (folder / "models.toml").is_file():
            return folder / "models.toml"
    raise LibraryError(f"models.toml is missing from {package}", hint="reinstall edgellm")
