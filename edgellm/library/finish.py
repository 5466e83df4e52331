"""The end of every pull: is it here already, what is known of it, and making it visible."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from edgellm.contracts.engine import ModelFile
from edgellm.contracts.request import Sampling
from edgellm.errors import LibraryError
from edgellm.formats.summary import summarise
from edgellm.library.manifest import Manifest, StoredFile
from edgellm.library.names import ModelName
from edgellm.library.staging import PullProgress, Report, Staged
from edgellm.library.store import Store


class Card(msgspec.Struct, frozen=True):
    """What is said of a model elsewhere than in its file: by the catalogue or by a hub."""

    title: str = ""
    licence: str = ""
    sampling: Sampling = Sampling()


def already(store: Store, name: ModelName, file: StoredFile) -> Manifest | None:
    """The manifest, when the store has exactly this file under this name, whole."""
    try:
        manifest = store.get(name)
    except LibraryError:
        return None
    if manifest is None or manifest.model.digest != file.digest or not store.has_blob(file.digest, file.size):
        return None
    return manifest


def refreshed(store: Store, there: Manifest, files: tuple[StoredFile, ...], card: Card) -> Manifest:
    """The stored manifest with what is said of the model today; the contents are the same."""
    fresh = msgspec.structs.replace(
        there,
        files=files,
        licence=card.licence or there.licence,
        title=card.title or there.title,
        sampling=card.sampling,
    )
    if fresh != there:
        try:
            store.publish(fresh)
        except LibraryError:  # a read-only store: the model is there all the same
            return there
    return fresh


def describe(name: ModelName, files: tuple[StoredFile, ...], model: ModelFile, card: Card) -> Manifest:
    """What is known of a model: from its card where that says something, else from the file itself."""
    summary = summarise(model)
    said = model.metadata.get("general.license")
    own_licence = said[:100] if isinstance(said, str) and said.isprintable() else ""
    return Manifest(
        name=name.name,
        tag=name.tag,
        files=files,
        licence=card.licence or own_licence or "unknown",
        created=datetime.now(UTC),
        summary=summary,
        sampling=card.sampling,
        title=card.title or summary.name,
    )


def publish(
    store: Store, file: StoredFile, staged: Staged | None, described: Callable[[Path], Manifest], report: Report
) -> Manifest:
    """Check the header of what will be stored, then make it visible."""
    report(PullProgress("publish", 0, file.size))
    manifest = described(staged.path if staged else store.blob_path(file.digest))
    store.publish(manifest, {staged.digest: staged.path} if staged else {})
    report(PullProgress("publish", file.size, file.size))
    return manifest
