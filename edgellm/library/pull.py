"""Pulling a model into the store: from the catalogue by name, or from a .gguf file on this machine.

    resolve -> already here? -> stage (download or copy, hashing while writing) -> preflight -> publish

Nothing is visible to others before publish. Unfinished work lies in models/partial/<job>/ under a lock of its own, so
that two pulls of one model share the work; what a killed pull leaves there is used or swept by the next one.
"""

from __future__ import annotations

import contextlib
import hashlib
import re
import shutil
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import msgspec

from edgellm import units
from edgellm.contracts.engine import ModelFile
from edgellm.contracts.request import Sampling
from edgellm.errors import InvalidName, InvalidRequest, LibraryError, NotFound
from edgellm.formats.gguf import read_model
from edgellm.formats.summary import summarise
from edgellm.library.catalogue import Catalogue, CatalogueEntry
from edgellm.library.manifest import MODEL_ROLE, Manifest, StoredFile
from edgellm.library.names import ModelName, name_from_file, parse_name
from edgellm.library.sources import local, pypi
from edgellm.library.staging import Meter, PullProgress, Report, Staged, disk_errors, hash_file
from edgellm.library.store import Store
from edgellm.paths import Paths

__all__ = ["PullProgress", "PullResult", "pull"]

_REMOTE: Final = re.compile(r"(hf|https?|ftp|file|ollama|modelscope):", re.IGNORECASE)
_PATH: Final = re.compile(r"[/\\]|^[.~]|\.gguf$", re.IGNORECASE)


class PullResult(msgspec.Struct, frozen=True):
    """A model that is in the store now. `already`: its contents were there before."""

    manifest: Manifest
    already: bool


def pull(reference: str, *, name: str | None = None, paths: Paths, report: Report) -> PullResult:
    """Fetch `reference` (a catalogue name or alias, or the path of a .gguf file) and store it, as `name` if given.

    Blocks; may be interrupted or killed at any point. Calls `report` from this thread as it goes.
    Raises InvalidRequest, InvalidName, NotFound, ConfigError, BadModelFile, ChecksumMismatch, DownloadFailed, DiskFull,
    LibraryError.
    """
    if _REMOTE.match(reference) or "://" in reference:
        raise InvalidRequest(
            f"cannot pull {reference}: addresses are not supported yet",
            hint="what can be pulled: a name from the catalogue (smollm2:135m), or a .gguf file here (./model.gguf)",
            param="model",
        )
    wanted = parse_name(name) if name is not None else None
    with disk_errors(f"cannot pull {reference}"):
        if _PATH.search(reference):
            return _import(Path(reference).expanduser(), wanted, paths, report)
        return _fetch(_entry(reference, paths), wanted, paths, report)


# From the catalogue


def _entry(reference: str, paths: Paths) -> CatalogueEntry:
    catalogue = Catalogue.load(paths)
    import_hint = f"to import the file of that name: edgellm pull ./{reference}" if Path(reference).is_file() else None
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
        hint = f"did you mean {near[0]}? `edgellm pull {near[0]}` fetches it ({units.size(found.size)})"
    else:
        hint = "what can be pulled: " + ", ".join(str(entry.name) for entry in catalogue.entries()[:8])
    raise NotFound(f"no model named {reference} in the catalogue", hint=hint, param="model")


def _fetch(entry: CatalogueEntry, wanted: ModelName | None, paths: Paths, report: Report) -> PullResult:
    name, source, store = wanted or entry.name, entry.source, Store(paths)
    file = StoredFile(MODEL_ROLE, source.digest, source.size, str(source))

    def describe(path: Path) -> Manifest:
        model = msgspec.structs.replace(read_model(path), path=Path(source.file))
        return _manifest(name, file, model, entry)

    already = _already(store, name, file)
    if already is not None:
        return PullResult(_refreshed(store, already, entry, file), already=True)
    store.refuse_conflict(name, (file,))
    with _job(paths, source.sha256, report) as folder:
        already = _already(store, name, file)  # another pull may have finished while this one waited
        if already is not None:
            return PullResult(already, already=True)
        staged = None
        if not store.has_blob(file.digest, file.size):
            staged = pypi.stage(source, folder, report)
        return PullResult(_publish(store, file, staged, describe, report), already=False)


def _refreshed(store: Store, there: Manifest, entry: CatalogueEntry, file: StoredFile) -> Manifest:
    """The stored manifest with what the catalogue says of the model today; the contents are the same."""
    fresh = msgspec.structs.replace(
        there, files=(file,), licence=entry.licence, title=entry.title, sampling=entry.sampling
    )
    if fresh != there:
        try:
            store.publish(fresh)
        except LibraryError:  # a read-only store: the model is there all the same
            return there
    return fresh


# From a file


def _import(path: Path, wanted: ModelName | None, paths: Paths, report: Report) -> PullResult:
    report(PullProgress("resolve"))
    model = local.preflight(path)
    name = wanted or name_from_file(path.stem)
    if name is None:
        raise InvalidRequest(f"no model name can be made of {path.name}", hint="give one with --name", param="name")
    absolute, store = path.resolve(), Store(paths)
    source = f"file:{absolute}".encode(errors="replace").decode()  # a name may hold bytes that are no text
    with _job(paths, hashlib.sha256(source.encode()).hexdigest(), report) as folder:
        staged, digest = None, None
        if store.has_blob_of_size(model.size):
            digest = hash_file(absolute, Meter(report, "verify", model.size))
        if digest is None or not store.has_blob(digest, model.size):
            _require_free_name(store, name, source, digest, model.size)
            staged = local.stage(absolute, folder / "file", report)
            digest = staged.digest
        file = StoredFile(MODEL_ROLE, digest, staged.size if staged else model.size, source)
        there = _already(store, name, file)
        if there is not None:
            return PullResult(there, already=True)

        def describe(stored: Path) -> Manifest:
            return _manifest(name, file, msgspec.structs.replace(local.preflight(stored), path=absolute))

        return PullResult(_publish(store, file, staged, describe, report), already=False)


def _require_free_name(store: Store, name: ModelName, source: str, digest: str | None, size: int) -> None:
    """Refuse a taken name before a long copy. Without a digest none here has this size, so the contents differ."""
    unknown = f"sha256:{'0' * 64}"
    store.refuse_conflict(name, (StoredFile(MODEL_ROLE, digest or unknown, size, source),))


# Both


def _already(store: Store, name: ModelName, file: StoredFile) -> Manifest | None:
    """The manifest, when the store has exactly this file under this name, whole."""
    try:
        manifest = store.get(name)
    except LibraryError:
        return None
    if manifest is None or manifest.model.digest != file.digest or not store.has_blob(file.digest, file.size):
        return None
    return manifest


def _manifest(name: ModelName, file: StoredFile, model: ModelFile, entry: CatalogueEntry | None = None) -> Manifest:
    """What is known of a model: from the catalogue where it has an entry, else from the file itself."""
    summary = summarise(model)
    said = model.metadata.get("general.license")
    own_licence = said[:100] if isinstance(said, str) and said.isprintable() else ""
    return Manifest(
        name=name.name,
        tag=name.tag,
        files=(file,),
        licence=entry.licence if entry else own_licence or "unknown",
        created=datetime.now(UTC),
        summary=summary,
        sampling=entry.sampling if entry else Sampling(),
        title=entry.title if entry else summary.name,
    )


def _publish(
    store: Store,
    file: StoredFile,
    staged: Staged | None,
    describe: Callable[[Path], Manifest],
    report: Report,
) -> Manifest:
    """Check the header of what will be stored, then make it visible."""
    report(PullProgress("publish", 0, file.size))
    manifest = describe(staged.path if staged else store.blob_path(file.digest))
    store.publish(manifest, {staged.digest: staged.path} if staged else {})
    report(PullProgress("publish", file.size, file.size))
    return manifest


@contextlib.contextmanager
def _job(paths: Paths, key: str, report: Report) -> Iterator[Path]:
    """A folder of this job's own under its lock; gone afterwards, whatever happens short of a kill."""
    from filelock import FileLock, Timeout

    partial = paths.models / "partial"
    folder = partial / key
    partial.mkdir(parents=True, exist_ok=True)
    lock = FileLock(str(partial / f"{key}.lock"))
    try:
        lock.acquire(timeout=0)
    except Timeout:
        report(PullProgress("resolve", detail="the same model is being pulled elsewhere; waiting for it"))
        lock.acquire()
    try:
        _sweep(partial, key)
        folder.mkdir(exist_ok=True)
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        lock.release()


def _sweep(partial: Path, own: str) -> None:
    """Remove what killed pulls of other models left: folders whose lock nobody holds."""
    from filelock import FileLock, Timeout

    for folder in partial.iterdir():
        if folder.name != own and folder.is_dir():
            with (
                contextlib.suppress(Timeout, OSError),
                FileLock(str(partial / f"{folder.name}.lock"), timeout=0),
            ):
                shutil.rmtree(folder, ignore_errors=True)
