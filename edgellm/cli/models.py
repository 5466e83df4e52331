"""`edgellm list`, `show` and `rm`: the store, read and changed in this process."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import msgspec

from edgellm.cli.lenient import settings_or_defaults
from edgellm.cli.link import loaded_models, stop_if_loaded
from edgellm.cli.output import Output
from edgellm.config import Settings
from edgellm.contracts.request import Sampling
from edgellm.contracts.status import LoadedModel
from edgellm.errors import EdgeError, InvalidRequest, LibraryError
from edgellm.formats.summary import ModelSummary
from edgellm.library.manifest import Manifest
from edgellm.library.names import ModelName
from edgellm.library.store import Damaged, Store
from edgellm.paths import default_paths
from edgellm.placement.plan import everyday_context
from edgellm.units import ago, number, parameters, size

# The context is the one a model has, or would get; the other what its authors trained it for.
COLUMNS = ("NAME", ">PARAMS", "TYPE", ">SIZE", ">CONTEXT", ">TRAINED", "USED", "NOTE")
SPARE = ("TRAINED", "USED", "PARAMS", "TYPE", "CONTEXT", "NOTE")
SORTS = ("name", "params", "size", "context", "used")
_NEVER = datetime.fromtimestamp(0, UTC)


def list_models(sort: str, *, json: bool, quiet: bool) -> None:
    """Print what is in the store; what is largest or was used last comes first where it is sorted by that."""
    if sort not in SORTS:
        raise InvalidRequest(f"cannot sort by {sort}", hint="sort by " + ", ".join(SORTS), param="sort")
    output = Output(json=json, quiet=quiet)
    paths = default_paths()
    store = Store(paths)
    listing = store.scan()
    manifests = sorted(listing.manifests, key=_order(sort, store))
    if quiet and not json:
        for manifest in manifests:
            output.line(str(manifest.full_name))
        return
    loaded = loaded_models(paths)
    settings = settings_or_defaults(paths, output)
    if json:
        models = [_document(store, manifest, loaded, settings) for manifest in manifests]
        output.document({"models": models, "damaged": [_damage(damaged) for damaged in listing.damaged]})
        return
    if manifests:
        output.table(COLUMNS, [_row(store, manifest, loaded, settings) for manifest in manifests], SPARE)
    elif not listing.damaged:
        output.note("no models yet; `edgellm pull smollm2:135m` fetches a small one to start with")
    for damaged in listing.damaged:
        output.warn(f"{damaged.problem}; {damaged.hint}")


def show_model(name: str, *, json: bool) -> None:
    """Print what one model is."""
    output = Output(json=json)
    paths = default_paths()
    store = Store(paths)
    manifest = store.require(name)
    path = store.model_path(manifest)
    loaded = loaded_models(paths)
    settings = settings_or_defaults(paths, output)
    if json:
        output.document(_document(store, manifest, loaded, settings))
        return
    summary = manifest.summary
    output.line(str(manifest.full_name))
    output.pairs(
        {
            "title": manifest.title or summary.name,
            "architecture": summary.architecture + (f", {summary.layers} layers" if summary.layers else ""),
            "parameters": f"{parameters(summary.parameters)} ({number(summary.parameters)})",
            "quantization": summary.quantization,
            "size": size(manifest.size),
            "trained for": f"{number(summary.context)} tokens" if summary.context else "not said in the file",
            "context": _context_told(manifest, loaded, settings),
            **_use(summary),
            "engine": _engine(store, manifest, loaded, settings),
            "licence": manifest.licence or "not known",
            "sampling": _sampling(manifest.sampling),
            "pulled": manifest.created.astimezone().strftime("%Y-%m-%d %H:%M"),
            "source": manifest.model.source,
            "digest": manifest.model.digest,
            "path": str(path),
        }
    )


def _use(summary: ModelSummary) -> dict[str, str]:
    """What it can be asked for."""
    if summary.embeds:
        return {"makes": "embeddings, at /v1/embeddings"}
    return {"chat template": "yes" if summary.has_chat_template else "no: it continues text"}


def _engine(store: Store, manifest: Manifest, loaded: Mapping[str, LoadedModel], settings: Settings) -> str:
    """What runs it, or would; or why nothing can."""
    from edgellm.contracts.engine import title_of
    from edgellm.plugins import embedder_for, engine_for

    here = loaded.get(str(manifest.full_name))
    if here is not None and here.engine:
        return here.engine
    try:
        model = store.header(manifest)
        choose = embedder_for if manifest.summary.embeds else engine_for
        return title_of(choose(model, settings.engine))
    except EdgeError as error:
        return f"none: {error.message}"


def remove_models(names: Sequence[str], *, json: bool, quiet: bool) -> None:
    """Remove each model, damaged ones too; nothing is removed if one of the names is wrong."""
    output = Output(json=json, quiet=quiet)
    paths = default_paths()
    store = Store(paths)
    wanted = list(dict.fromkeys(_existing(store, name) for name in names))
    freed = {}
    for name in wanted:
        stop_if_loaded(paths, str(name))
        freed[str(name)] = store.remove(name)
        output.note(f"removed {name} ({size(freed[str(name)])} freed)")
    if json:
        output.document({"removed": [{"name": name, "freed": count} for name, count in freed.items()]})


def _existing(store: Store, text: str) -> ModelName:
    """The name in the store that `text` means. Raises InvalidName or NotFound; damage is no reason to refuse."""
    try:
        return store.require(text).full_name
    except LibraryError:
        return store.resolve(text)


def _order(sort: str, store: Store) -> Callable[[Manifest], Any]:
    if sort == "used":
        return lambda manifest: -(store.last_used(manifest.full_name) or _NEVER).timestamp()
    keys: dict[str, Callable[[Manifest], Any]] = {
        "name": lambda manifest: manifest.full_name,
        "params": lambda manifest: -manifest.summary.parameters,
        "size": lambda manifest: -manifest.size,
        "context": lambda manifest: -manifest.summary.context,
    }
    return keys[sort]


def _context(manifest: Manifest, loaded: Mapping[str, LoadedModel], settings: Settings) -> int:
    """The longest conversation, tokens: as it is loaded, else as it would be, given the memory."""
    here = loaded.get(str(manifest.full_name))
    return here.context if here is not None else everyday_context(settings, manifest.summary.context or None)


def _context_told(manifest: Manifest, loaded: Mapping[str, LoadedModel], settings: Settings) -> str:
    tokens = number(_context(manifest, loaded, settings))
    if str(manifest.full_name) in loaded:
        return f"{tokens} tokens, as it is loaded"
    return f"{tokens} tokens when it is loaded, as far as memory allows (--context, or the setting)"


def _row(store: Store, manifest: Manifest, loaded: Mapping[str, LoadedModel], settings: Settings) -> list[str]:
    summary = manifest.summary
    used = store.last_used(manifest.full_name)
    return [
        str(manifest.full_name),
        parameters(summary.parameters),
        summary.quantization,
        size(manifest.size),
        number(_context(manifest, loaded, settings)),
        number(summary.context) if summary.context else "?",
        ago((datetime.now(UTC) - used).total_seconds()) if used else "never",
        _note(loaded.get(str(manifest.full_name))),
    ]


def _note(model: LoadedModel | None) -> str:
    if model is None:
        return ""
    return "loaded" if model.state == "ready" else model.state


def _document(
    store: Store, manifest: Manifest, loaded: Mapping[str, LoadedModel], settings: Settings
) -> dict[str, Any]:
    """A model as JSON: the manifest under its full name, its path, and whether it is loaded, with what context.

    `summary.context` is the trained one.
    """
    document: dict[str, Any] = msgspec.to_builtins(manifest)
    del document["version"], document["tag"]
    used = store.last_used(manifest.full_name)
    return document | {
        "name": str(manifest.full_name),
        "size": manifest.size,
        "path": str(store.model_path(manifest)),
        "used": used.isoformat() if used else None,
        "loaded": str(manifest.full_name) in loaded,
        "context": _context(manifest, loaded, settings),
    }


def _damage(damaged: Damaged) -> dict[str, str]:
    return {"name": str(damaged.name), "problem": damaged.problem, "hint": damaged.hint}


def _sampling(sampling: Sampling) -> str:
    said = {"temperature": sampling.temperature, "top-p": sampling.top_p, "top-k": sampling.top_k}
    told = ", ".join(f"{name} {value:g}" for name, value in said.items() if value is not None)
    return told or "nothing recommended; the settings apply"
