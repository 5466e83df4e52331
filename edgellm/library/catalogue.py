"""The catalogue: what can be pulled by name. Shipped in models.toml (whose header documents the form), with the user's
own models.toml laid over it.
"""

from __future__ import annotations

import difflib
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Final

import msgspec
from msgspec import Meta

import edgellm
from edgellm.contracts.request import Sampling
from edgellm.errors import ConfigError, InvalidName, LibraryError
from edgellm.library.names import ModelName, parse_name
from edgellm.paths import Paths

SCHEMA_VERSION: Final = 1
STARTER: Final = "smollm2:135m"  # what a newcomer is offered: small, and it comes from a package index
_INSIDE_WHEEL: Final = r"^(?!/)(?!.*(^|/)\.\.?(/|$))[^\\:\x00-\x1f]+\.gguf\Z"  # relative under POSIX and Windows rules

_Line = Annotated[str, Meta(min_length=1, max_length=200, pattern=r"^[^\x00-\x1f\x7f]+\Z")]


class PypiSource(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="kind", tag="pypi"):
    """One file inside a wheel on a Python package index."""

    package: Annotated[str, Meta(pattern=r"^[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?\Z")]
    version: Annotated[str, Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9.!+_-]*\Z")]
    file: Annotated[str, Meta(pattern=_INSIDE_WHEEL)]
    sha256: Annotated[str, Meta(pattern=r"^[0-9a-f]{64}\Z")]
    size: Annotated[int, Meta(gt=0, le=1 << 50)]  # bytes

    @property
    def digest(self) -> str:
        return f"sha256:{self.sha256}"

    def __str__(self) -> str:
        return f"pypi:{self.package}=={self.version}/{self.file}"


class CatalogueEntry(msgspec.Struct, frozen=True, kw_only=True):
    """A model that can be pulled."""

    name: ModelName
    title: str
    licence: str
    source: PypiSource
    aliases: tuple[ModelName, ...] = ()
    quantization: str = ""
    context: int = 0  # tokens; 0: not said
    sampling: Sampling = Sampling()

    @property
    def size(self) -> int:
        """Bytes on disk once pulled."""
        return self.source.size


class _SamplingTable(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    temperature: Annotated[float, Meta(ge=0, le=10)] | None = None
    top_p: Annotated[float, Meta(gt=0, le=1)] | None = None
    top_k: Annotated[int, Meta(ge=0)] | None = None


class _EntryTable(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    title: _Line
    licence: _Line
    source: PypiSource
    aliases: tuple[str, ...] = ()
    quantization: Annotated[str, Meta(max_length=40, pattern=r"^[A-Za-z0-9_.-]*\Z")] = ""
    context: Annotated[int, Meta(ge=0)] = 0
    sampling: _SamplingTable = _SamplingTable()


class Catalogue:
    """Entries by name and alias. An exact name wins over an alias; the user's alias over a shipped one."""

    def __init__(self, entries: Mapping[ModelName, CatalogueEntry], aliases: Mapping[ModelName, ModelName]) -> None:
        self._entries = dict(entries)
        self._aliases = dict(aliases)

    @staticmethod
    def load(paths: Paths) -> Catalogue:
        """The shipped catalogue with the user's over it. Raises ConfigError naming file and key."""
        shipped = _shipped_file()
        tables = _read(shipped)
        origin = dict.fromkeys(tables, shipped)
        overlay = paths.catalogue_overlay
        if overlay.exists():
            for key, table in _read(overlay).items():
                tables[key] = _laid_over(table, tables.get(key, {}))
                origin.pop(key, None)  # moved to the end: the user's aliases are noted last
                origin[key] = overlay
        entries = [_entry(file, key, tables[key]) for key, file in origin.items()]
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


def _read(file: Path) -> dict[str, dict[str, Any]]:
    """The entries' tables of one file, unchecked but for their being tables under their canonical names."""
    try:
        content = tomllib.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:  # ValueError: TOML syntax, UTF-8
        raise ConfigError(f"{file}: {getattr(error, 'strerror', None) or error}", hint="correct the file") from error
    version = content.pop("schema_version", None)
    if version is None:
        raise _bad(file, "schema_version", f"is missing; put schema_version = {SCHEMA_VERSION} at the top")
    if type(version) is not int or version != SCHEMA_VERSION:
        raise _bad(file, "schema_version", f"is {version!r}; this edgellm reads {SCHEMA_VERSION}")
    models = content.pop("models", {})
    if content:
        raise _bad(file, min(content), 'is not a known key; entries go under [models."NAME"]')
    if not isinstance(models, dict):
        raise _bad(file, "models", "must be a table of entries")
    tables: dict[str, dict[str, Any]] = {}
    for key, table in models.items():
        if not isinstance(table, dict):
            raise _bad(file, _key(key), "must be a table")
        tables[str(_name(file, _key(key), key))] = table
    return tables


def _laid_over(upper: dict[str, Any], lower: dict[str, Any]) -> dict[str, Any]:
    """`upper` over `lower`, table by table. A source of another kind replaces the lower one whole."""
    merged = dict(lower)
    for key, value in upper.items():
        below = lower.get(key)
        if isinstance(value, dict) and isinstance(below, dict) and value.get("kind") in (None, below.get("kind")):
            value = _laid_over(value, below)
        merged[key] = value
    return merged


def _entry(file: Path, key: str, table: dict[str, Any]) -> CatalogueEntry:
    try:
        checked = msgspec.convert(table, _EntryTable)
    except msgspec.ValidationError as error:
        what, _, where = str(error).partition(" - at `$")
        what = "is not of the documented form" if "regex" in what else what[:1].lower() + what[1:]
        raise _bad(file, _key(key) + where.rstrip("`"), what) from error
    sampling = checked.sampling
    return CatalogueEntry(
        name=parse_name(key),
        title=checked.title,
        licence=checked.licence,
        source=checked.source,
        aliases=tuple(_name(file, f"{_key(key)}.aliases", alias) for alias in checked.aliases),
        quantization=checked.quantization,
        context=checked.context,
        sampling=Sampling(temperature=sampling.temperature, top_p=sampling.top_p, top_k=sampling.top_k),
    )


def _name(file: Path, key: str, text: str) -> ModelName:
    try:
        return parse_name(text)
    except InvalidName as error:
        raise _bad(file, key, error.message) from error


def _key(name: str) -> str:
    return f'models."{name}"'


def _bad(file: Path, key: str, problem: str) -> ConfigError:
    hint = "the form is documented at the top of the models.toml that comes with edgellm"
    return ConfigError(f"{file}: {key}: {problem}", hint=hint, param=key)
