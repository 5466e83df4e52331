"""API keys: made here, kept as hashes in a file that only their user may read, looked at anew whenever it changes.

A key is 256 random bits, so a plain SHA-256 keeps it: there is nothing to guess. Keys that a user chose (`api_keys` of
the settings) count as well.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import re
import secrets
import stat
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from edgellm import platform
from edgellm.config import Settings
from edgellm.errors import UNREADABLE, ConfigError, InvalidName, NotFound
from edgellm.paths import Paths
from edgellm.small_files import LARGEST, open_regular, read_within

logger = logging.getLogger(__name__)

PREFIX = "edge-"
_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,63}")
_SHOWN = 4  # characters of a key that a list shows, to tell one from another
_Hash = str  # 64 hexadecimal digits


class StoredKey(msgspec.Struct, frozen=True):
    """A key as the file has it. The key itself is nowhere."""

    name: str
    sha256: _Hash
    shown: str  # its beginning
    created: datetime


class KeyFile(msgspec.Struct, frozen=True):
    """What keys.json holds."""

    version: int
    keys: tuple[StoredKey, ...]


def path_of(paths: Paths) -> Path:
    return paths.config / "keys.json"


def hashed(key: str) -> bytes:
    """What is kept of a key."""
    return hashlib.sha256(key.encode("utf-8", "surrogateescape")).digest()


def stored(path: Path) -> tuple[StoredKey, ...]:
    """The keys in the file, none where there is no file. Raises ConfigError: damaged, or open to others."""
    try:
        with open_regular(path) as opened:
            mode = os.fstat(opened.fileno()).st_mode  # of the very file that is read
            body = read_within(opened, LARGEST)
    except FileNotFoundError:
        return ()
    except OSError as error:
        raise _unusable(path, error.strerror or type(error).__name__, "mend or remove it") from error
    if os.name == "posix" and stat.S_IMODE(mode) & 0o077:
        raise _unusable(path, "other users may read or change it", f"chmod 600 {path}")
    try:
        file = msgspec.json.decode(body, type=KeyFile)
        for key in file.keys:
            if len(bytes.fromhex(key.sha256)) != 32:
                raise ValueError("not a SHA-256")
    except (*UNREADABLE, ValueError) as error:
        raise _unusable(path, "it is damaged", "remove it and make the keys anew: `edgellm keys add NAME`") from error
    return file.keys


def add(paths: Paths, name: str) -> str:
    """Make a key and keep its hash; the key, which is not to be had again. Raises InvalidName, ConfigError."""
    if _NAME.fullmatch(name) is None:
        raise InvalidName(
            f"{name[:80]!r} is no name for a key", hint="use letters a-z, digits, and . _ - inside: laptop-2"
        )
    key = PREFIX + secrets.token_urlsafe(32)
    with _edited(paths) as keys:
        if any(known.name == name for known in keys):
            raise InvalidName(f"there is a key named {name} already", hint=f"`edgellm keys rm {name}` revokes it")
        shown = key[: len(PREFIX) + _SHOWN]
        keys.append(StoredKey(name, hashed(key).hex(), shown, datetime.now(UTC).replace(microsecond=0)))
    return key


def remove(paths: Paths, name: str) -> None:
    """Revoke a key. Raises NotFound, ConfigError."""
    with _edited(paths) as keys:
        left = [key for key in keys if key.name != name]
        if len(left) == len(keys):
            raise NotFound(f"no key named {name[:80]}", hint="`edgellm keys` lists them")
        keys[:] = left


class KeyRing:
    """The hashes of all keys that open the daemon, as they are now: a key that is revoked opens nothing any more."""

    def __init__(self, fixed: tuple[bytes, ...], path: Path | None = None, *, always: bool = False) -> None:
        """`fixed` are there whatever the file says; `always`: a key is required even where there is none."""
        self._fixed = fixed
        self._path = path
        self._always = always
        self._seen: tuple[int, ...] = ()
        self._stored: tuple[bytes, ...] = ()
        self._broken = False  # a file that cannot be trusted opens no door, and does not leave it open either

    @staticmethod
    def of(settings: Settings, path: Path | None = None, *, always: bool = False) -> KeyRing:
        return KeyRing(tuple(hashed(key) for key in settings.api_keys), path, always=always)

    def hashes(self) -> tuple[bytes, ...]:
        """SHA-256 of every key."""
        self._look()
        return (*self._fixed, *self._stored)

    def required(self) -> bool:
        """Whether a request needs a key."""
        return self._always or bool(self.hashes()) or self._broken

    def _look(self) -> None:
        if self._path is None:
            return
        try:
            found = self._path.stat()
            now: tuple[int, ...] = (found.st_mtime_ns, found.st_size, found.st_ino, found.st_mode)
        except OSError:
            now = (0,)
        if now == self._seen:
            return
        self._seen = now
        try:
            self._stored = tuple(bytes.fromhex(key.sha256) for key in stored(self._path))
            self._broken = False
        except ConfigError as error:
            logger.error("%s: no key of it opens anything; %s", error.message, error.hint)
            self._stored, self._broken = (), True


@contextlib.contextmanager
def _edited(paths: Paths) -> Iterator[list[StoredKey]]:
    """The keys as a list to change; written back when the block ends well."""
    from filelock import FileLock

    path = path_of(paths)
    try:
        platform.make_private_folder(path.parent)
        with FileLock(str(path.with_suffix(".lock")), timeout=10):
            keys = list(stored(path))
            yield keys
            file = KeyFile(1, tuple(keys))
            platform.write_private(path, msgspec.json.format(msgspec.json.encode(file), indent=2) + b"\n")
    except OSError as error:
        remedy = "free some space" if platform.disk_is_full(error) else "give this user the right to write it"
        raise _unusable(path, error.strerror or str(error), remedy) from error


def _unusable(path: Path, why: str, way_out: str) -> ConfigError:
    return ConfigError(f"{path}: {why}", hint=way_out, param="api_keys")
