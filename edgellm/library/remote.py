"""Pulling what lies on a hub or at an address: look first, say what it is, then fetch, join and publish.

look (headers by range) -> announce (what it is, whether it fits) -> room on the disk -> fetch -> preflight -> publish
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path

import msgspec

from edgellm.config import Settings
from edgellm.contracts.engine import ModelFile
from edgellm.errors import DownloadFailed, EdgeError, LibraryError
from edgellm.formats.splits import join
from edgellm.formats.summary import ModelSummary, summarise
from edgellm.library import joining
from edgellm.library.fetch import Sight, Source
from edgellm.library.finish import Card, already, describe, publish, refreshed
from edgellm.library.fitting import Fit, fit_of, pace_of
from edgellm.library.jobs import Job, bytes_here, forget, job, read_job, write_job
from edgellm.library.manifest import MODEL_ROLE, Manifest, StoredFile
from edgellm.library.names import ModelName
from edgellm.library.sources import local
from edgellm.library.staging import Meter, PullProgress, Report, Staged, hash_file, require_space
from edgellm.library.store import Store
from edgellm.library.transfer.download import Tuning
from edgellm.library.transfer.link import Explain, Remote
from edgellm.paths import Paths


class Announcement(msgspec.Struct, frozen=True):
    """What is about to be fetched. `problem`: why it would not run here now."""

    name: ModelName
    source: str  # in words: "from huggingface.co"
    size: int  # bytes over all files
    here: int  # bytes that an earlier pull left
    card: Card
    summary: ModelSummary | None = None
    fit: Fit | None = None
    problem: str = ""
    pace: str = ""  # how fast it will about be, in words
    notes: tuple[str, ...] = ()


class Context(msgspec.Struct, frozen=True):
    """What every pull is given."""

    paths: Paths
    report: Report
    settings: Settings = Settings()
    announce: Callable[[Announcement], None] = lambda _: None
    tuning: Tuning = Tuning()


class Item(msgspec.Struct, frozen=True):
    """A model somewhere else: one file, or the parts of a split one in order."""

    name: ModelName
    reference: str  # what to pull to get it again
    remotes: tuple[Remote, ...]
    sources: tuple[str, ...]  # of each file, as the manifest keeps it
    origin: str  # in words
    explain: Explain
    way_out: str
    card: Card = Card()
    notes: tuple[str, ...] = ()


def pull_item(item: Item, context: Context, seen: Sight | None = None) -> tuple[Manifest, bool]:
    """The manifest of the model in the store, and whether its contents were there before.

    `seen`: what an earlier look at the first file found. Raises as `pull` does.
    """
    store = Store(context.paths)
    there = _here(store, item)
    if there is not None:
        return refreshed(store, there, there.files, item.card), True
    store.refuse_conflict(item.name, (_file(item, _digest(item) or f"sha256:{'0' * 64}", 0),))
    with job(context.paths, _key(item), context.report) as folder, ExitStack() as stack:
        there = _here(store, item)  # another pull may have finished while this one waited
        if there is not None:
            return there, True
        lent = _lent(store, item, context.report)
        if lent is not None:
            return lent, False
        sources = [Source(remote, item.explain, item.way_out, context.tuning) for remote in item.remotes]
        for source in sources:
            stack.callback(source.close)
        sights = [seen if seen and not index else source.look(context.report) for index, source in enumerate(sources)]
        there = _same_version(store, item, sights)
        if there is not None:
            return there, True
        return _fetched(store, item, sources, sights, folder, context), False


def _fetched(
    store: Store, item: Item, sources: Sequence[Source], sights: Sequence[Sight], folder: Path, context: Context
) -> Manifest:
    model = _checked(item, sights)
    described = Job(item.reference, str(item.name), tuple(sight.file for sight in sights))
    if read_job(folder) != described:
        forget(folder)
        write_job(folder, described)
    here = bytes_here(folder, described)
    context.announce(_announcement(item, model, described.size, here, context.settings))
    require_space(folder, described.size - here, f"pulling {item.name}")
    parts: tuple[str, ...] = ()
    if len(sources) == 1:
        staged = sources[0].fetch(sights[0], folder, 0, context.report)
    else:
        staged, parts = _joined(sources, sights, folder, context.report)
    return _published(store, item, _file(item, staged.digest, staged.size, sights[0], parts), staged, context.report)


def _joined(
    sources: Sequence[Source], sights: Sequence[Sight], folder: Path, report: Report
) -> tuple[Staged, tuple[str, ...]]:
    """All parts, each verified, as one file; and their digests."""
    plan = joining.plan([sight.model for sight in sights if sight.model], [sight.beginning for sight in sights])
    joined = folder / "joined.part"
    joining.begin(joined, plan)
    total, before = sum(sight.file.size for sight in sights), 0
    digests = []
    for index, (source, sight) in enumerate(zip(sources, sights, strict=True)):
        target = joining.PartTarget(folder / f"{index}.head", joined, plan.size, plan.places[index])
        digests.append(source.fetch_into(sight, target, folder / f"{index}.ranges", _of_all(report, before, total)))
        before += sight.file.size
    return Staged(joined, hash_file(joined, Meter(report, "verify", plan.size)), plan.size), tuple(digests)


def _of_all(report: Report, before: int, total: int) -> Report:
    """A report of one file's download as one of all files'."""

    def over_all(progress: PullProgress) -> None:
        if progress.stage == "download":
            progress = msgspec.structs.replace(progress, done=before + progress.done, total=total)
        report(progress)

    return over_all


def _published(store: Store, item: Item, file: StoredFile, staged: Staged | None, report: Report) -> Manifest:
    def described(path: Path) -> Manifest:
        found = msgspec.structs.replace(local.preflight(path), path=Path(item.remotes[0].name))
        return describe(item.name, (file,), found, item.card)

    return publish(store, file, staged, described, report)


# Is it here already


def _digest(item: Item) -> str | None:
    """The digest of what will be stored, where it is known beforehand."""
    known = item.remotes[0].sha256
    return f"sha256:{known}" if known and len(item.remotes) == 1 else None


def _here(store: Store, item: Item) -> Manifest | None:
    """The manifest of this very model, when all of it is in the store."""
    digest, size = _digest(item), item.remotes[0].size
    if digest is not None:
        return already(store, item.name, _file(item, digest, size or 0)) if size else None
    parts = tuple(f"sha256:{remote.sha256}" for remote in item.remotes)
    return _stored(store, item, lambda file: len(parts) > 1 and file.parts == parts)


def _same_version(store: Store, item: Item, sights: Sequence[Sight]) -> Manifest | None:
    """The same, for an address without a digest: by what the server calls this state of it."""
    sight = sights[0].file
    return _stored(
        store,
        item,
        lambda file: (
            bool(sight.version)
            and (file.source, file.version, file.size) == (item.sources[0], sight.version, sight.size)
        ),
    )


def _stored(store: Store, item: Item, same: Callable[[StoredFile], bool]) -> Manifest | None:
    try:
        manifest = store.get(item.name)
    except LibraryError:
        return None
    if manifest is None or not same(manifest.model) or not store.has_blob(manifest.model.digest, manifest.model.size):
        return None
    return manifest


def _lent(store: Store, item: Item, report: Report) -> Manifest | None:
    """The manifest, published, when another name in the store has the contents."""
    digest, size = _digest(item), item.remotes[0].size
    if digest is None or size is None or not store.has_blob(digest, size):
        return None
    return _published(store, item, _file(item, digest, size), None, report)


# Parts


def _file(item: Item, digest: str, size: int, sight: Sight | None = None, parts: tuple[str, ...] = ()) -> StoredFile:
    return StoredFile(MODEL_ROLE, digest, size, item.sources[0], sight.file.version if sight else "", parts)


def _key(item: Item) -> str:
    """The job's folder: one for the same contents wherever they come from, else one for the address."""
    digest = _digest(item)
    if digest is not None:
        return digest.removeprefix("sha256:")
    marks = [remote.sha256 or remote.url for remote in item.remotes]
    return hashlib.sha256("\n".join(marks).encode()).hexdigest()


def _checked(item: Item, sights: Sequence[Sight]) -> ModelFile | None:
    """The model that the files make together, as far as their headers are known."""
    models = [sight.model for sight in sights if sight.model is not None]
    if len(models) < len(sights):
        if len(sights) == 1:
            return None
        raise DownloadFailed(
            f"the header of a part of {item.name} is too long to be read before the rest",
            hint="fetch the parts with another program and join them: llama-gguf-split --merge",
        )
    model = join(models)
    local.require_model(model)
    return model


def _announcement(item: Item, model: ModelFile | None, size: int, here: int, settings: Settings) -> Announcement:
    said = Announcement(item.name, item.origin, size, here, item.card, notes=item.notes)
    if model is None:
        return said
    said = msgspec.structs.replace(said, summary=summarise(model))
    try:
        return msgspec.structs.replace(said, fit=fit_of(model, settings), pace=pace_of(model))
    except EdgeError as error:
        return msgspec.structs.replace(said, problem=error.line)
