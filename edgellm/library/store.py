"""The model store: what has been pulled, on disk.

    models/blobs/sha256-<hex>              files by content; one blob may serve several names
    models/manifests/<name>/<tag>.json     what a name means (`Manifest`); <tag>.used beside it is touched at each use
    models/partial/                        unfinished pulls
    models/.lock                           held while blobs and manifests change

A blob appears by atomic rename once it is whole and flushed, and before the manifest that names it, so a reader
without any lock sees all of a model or nothing.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from types import MappingProxyType
from typing import Final

import msgspec

from edgellm import platform
from edgellm.contracts.engine import ModelFile
from edgellm.errors import BadModelFile, EdgeError, InvalidName, InvalidRequest, LibraryError, NotFound
from edgellm.library.manifest import Manifest, StoredFile, decode, digests_in, encode, is_newer, same_origin
from edgellm.library.names import ModelName, parse_name
from edgellm.library.staging import disk_errors, publish_file, sync_folder
from edgellm.paths import Paths
from edgellm.small_files import read_small

LOCK_S: Final = 30.0  # how long to wait for another process's change
_NOTHING: Final[Mapping[str, Path]] = MappingProxyType({})


class Damaged(msgspec.Struct, frozen=True):
    """A name in the store that cannot be used, and why."""

    name: ModelName
    problem: str
    hint: str


class Listing(msgspec.Struct, frozen=True):
    """Everything in the store, by name."""

    manifests: list[Manifest]
    damaged: list[Damaged]


class Store:
    """Reads need no lock; changes take the store's."""

    def __init__(self, paths: Paths) -> None:
        self._paths = paths
        self._blobs = paths.models / "blobs"
        self._manifests = paths.models / "manifests"

    # Reading

    def list(self) -> list[Manifest]:
        """The usable models, by name. `scan` tells of damaged ones too."""
        return self.scan().manifests

    def scan(self) -> Listing:
        """Everything in the store. One bad manifest never hides the others."""
        listing = Listing([], [])
        for name in self._names():
            try:
                manifest = self.get(name)
                if manifest is not None:
                    self.model_path(manifest)
                    listing.manifests.append(manifest)
            except LibraryError as error:
                listing.damaged.append(Damaged(name, error.message, error.hint or ""))
        return listing

    def get(self, name: ModelName) -> Manifest | None:
        """The manifest of exactly this name. Raises LibraryError when it is damaged or of a newer version."""
        path = self._manifest_path(name)
        try:
            raw = read_small(path)
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            raise LibraryError(f"{path}: {error.strerror or error}", hint="check its permissions") from error
        return decode(raw, path, name)

    def resolve(self, text: str) -> ModelName:
        """The name `text` means here: itself, or what it is an alias of when only that is installed."""
        name = parse_name(text)
        if self._manifest_path(name).exists():
            return name
        from edgellm.library.catalogue import Catalogue

        entry = Catalogue.load(self._paths).get(name)
        return entry.name if entry and self._manifest_path(entry.name).exists() else name

    def require(self, text: str) -> Manifest:
        """The manifest that `text` names, by name or alias. Raises InvalidName, NotFound, LibraryError."""
        manifest = self.get(self.resolve(text))
        if manifest is None:
            raise self._not_found(text)
        return manifest

    def model_path(self, manifest: Manifest) -> Path:
        """The file an engine loads. Raises LibraryError when it is gone or cut short."""
        file = manifest.model
        if not self.has_blob(file.digest, file.size):
            raise LibraryError(
                f"the file of {manifest.full_name} is missing or incomplete ({self.blob_path(file.digest)})",
                hint=self._mending(manifest),
            )
        return self.blob_path(file.digest)

    def header(self, manifest: Manifest) -> ModelFile:
        """What the model's file says of itself. Raises LibraryError where it is gone or unreadable, BadModelFile where
        damaged."""
        from edgellm.formats.gguf import read_model

        path = self.model_path(manifest)
        try:
            return read_model(path)
        except BadModelFile as error:
            why = error.message.removeprefix(f"{path}: ")
            if isinstance(error.__cause__, OSError):  # the system's, which says nothing of what is in the file
                told = f"the file of {manifest.full_name} cannot be read ({path}: {why})"
                raise LibraryError(told, hint=error.hint) from error
            raise BadModelFile(
                f"the file of {manifest.full_name} is damaged ({path}: {why})", hint=self._mending(manifest)
            ) from error

    def blob_path(self, digest: str) -> Path:
        """Where the contents of that digest lie, if they do."""
        return self._blobs / digest.replace(":", "-")

    def has_blob(self, digest: str, size: int) -> bool:
        """Whether the contents are here, whole."""
        try:
            return self.blob_path(digest).stat().st_size == size
        except OSError:
            return False

    def has_blob_of_size(self, size: int) -> bool:
        """Whether some blob has this size: cheap reason to hash a file before copying it."""
        try:
            return any(blob.stat().st_size == size for blob in self._blobs.glob("sha256-*"))
        except OSError:
            return False

    # Use

    def touch(self, name: ModelName | str) -> None:
        """Note that a model is used now. Never fails: a store may be read-only."""
        with contextlib.suppress(OSError, EdgeError):
            exact = self._exact(name)
            if self._manifest_path(exact).exists():
                self._used_path(exact).touch()

    def last_used(self, name: ModelName | str) -> datetime | None:
        """When a model was last used, UTC; None for never."""
        with contextlib.suppress(OSError, EdgeError):
            return datetime.fromtimestamp(self._used_path(self._exact(name)).stat().st_mtime, UTC)
        return None

    # Changing

    def publish(self, manifest: Manifest, staged: Mapping[str, Path] = _NOTHING) -> None:
        """Make `manifest` the meaning of its name. `staged` holds finished files by digest, which are moved in; other
        files must be here already. An older manifest is replaced when it has the same origin or is unreadable.

        Raises InvalidRequest when the name belongs to something else, LibraryError, DiskFull.
        """
        name = manifest.full_name
        with disk_errors(f"cannot store {name}"), self._locked():
            self.refuse_conflict(name, manifest.files)
            replaced = digests_in(self._raw(name))
            for file in manifest.files:
                if not self.has_blob(file.digest, file.size):
                    if file.digest not in staged:
                        raise LibraryError(f"a file of {name} was removed meanwhile", hint="pull it again")
                    publish_file(staged[file.digest], self.blob_path(file.digest))
            path = self._manifest_path(name)
            path.parent.mkdir(parents=True, exist_ok=True)
            platform.write_private(path, encode(manifest))
            sync_folder(path.parent)
            self._drop_unused(replaced)

    def remove(self, name: ModelName | str) -> int:
        """Remove a name, readable or not, and the blobs no other name uses; the bytes freed. Raises NotFound."""
        exact = self._exact(name)
        path = self._manifest_path(exact)
        if not path.exists():
            raise self._not_found(str(name))
        with disk_errors(f"cannot remove {exact}"), self._locked():
            digests = digests_in(self._raw(exact))
            path.unlink(missing_ok=True)
            self._used_path(exact).unlink(missing_ok=True)
            with contextlib.suppress(OSError):
                path.parent.rmdir()  # when it was the last tag
            return self._drop_unused(digests)

    def prune(self) -> int:
        """Delete contents that no name mentions; the bytes freed."""
        with disk_errors("cannot prune the store"), self._locked():
            found = {path.name.replace("-", ":", 1) for path in self._blobs.glob("sha256-*")}
            return self._drop_unused(found)

    def refuse_conflict(self, name: ModelName, files: tuple[StoredFile, ...]) -> None:
        """Raise InvalidRequest if `name` stands for other contents of another origin."""
        try:
            there = self.get(name)
        except LibraryError:
            if is_newer(self._raw(name)):
                raise
            return  # unreadable: pulling again mends it
        mine = {(file.role, file.digest) for file in files}
        if there is None or mine == {(file.role, file.digest) for file in there.files}:
            return
        if not same_origin(there.model.source, files[0].source):
            raise InvalidRequest(
                f"the name {name} is taken by another model, from {there.model.source}",
                hint=f"choose another with --name, or remove that one: `edgellm rm {name}`",
                param="name",
            )

    # Parts

    def _mending(self, manifest: Manifest) -> str:
        """How to get the file anew. As long as any name keeps it, a pull takes it for good."""
        digest = manifest.model.digest
        names = [str(name) for name in self._names() if digest in digests_in(self._raw(name))]
        return f"`edgellm rm {' '.join(names)}`, then pull it again"

    def _exact(self, name: ModelName | str) -> ModelName:
        return self.resolve(name) if isinstance(name, str) else name

    def _names(self) -> tuple[ModelName, ...]:
        found = []
        for path in self._manifests.glob("*/*.json"):
            with contextlib.suppress(InvalidName):  # not ours
                found.append(parse_name(f"{path.parent.name}:{path.name.removesuffix('.json')}"))
        return tuple(sorted(found))

    def _manifest_path(self, name: ModelName) -> Path:
        return self._manifests / name.name / f"{name.tag}.json"

    def _used_path(self, name: ModelName) -> Path:
        return self._manifests / name.name / f"{name.tag}.used"

    def _raw(self, name: ModelName) -> bytes:
        try:
            return read_small(self._manifest_path(name))
        except OSError:
            return b""

    def _drop_unused(self, digests: set[str]) -> int:
        """Delete those of `digests` that no manifest mentions; the bytes freed. Needs the lock."""
        for name in self._names():
            digests = digests - digests_in(self._raw(name))
        freed = 0
        for digest in digests:
            blob = self.blob_path(digest)
            # Windows refuses while a worker has it mapped: it stays until the same model comes and goes again.
            with contextlib.suppress(FileNotFoundError, PermissionError):
                state = blob.lstat()
                blob.unlink()
                freed += state.st_size if state.st_nlink == 1 else 0  # another link keeps the bytes
        return freed

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        from filelock import FileLock, Timeout

        self._paths.models.mkdir(parents=True, exist_ok=True)
        path = self._paths.models / ".lock"
        try:
            with FileLock(str(path), timeout=LOCK_S):
                yield
        except Timeout as error:
            raise LibraryError(
                "another edgellm is changing the model store", hint=f"try again; it holds {path}"
            ) from error

    def _not_found(self, text: str) -> NotFound:
        from edgellm.library.catalogue import Catalogue, near_misses

        catalogue = Catalogue.load(self._paths)
        entry = catalogue.get(parse_name(text))
        if entry is not None:
            others = [str(name) for name in self._names() if name.name == entry.name.name]
            there = f"{', '.join(others)} {'is' if len(others) == 1 else 'are'} here; " if others else ""
            return NotFound(f"{text} has not been pulled", hint=there + entry.offer(text), param="model")
        here = near_misses(text, self._names())
        known = catalogue.near(text)
        if here:
            hint = f"did you mean {here[0]}?"
        elif known and (near := catalogue.get(parse_name(known[0]))):
            hint = f"did you mean {known[0]}? {near.offer(known[0])}"
        else:
            hint = "`edgellm list` shows what is here"
        return NotFound(f"no model named {text}", hint=hint, param="model")
