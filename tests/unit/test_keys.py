"""The key file: hashes only, this user only, and what it says now."""

from __future__ import annotations

import os
import stat
from typing import Any

import msgspec
import pytest

from edgellm.config import Settings
from edgellm.errors import ConfigError, InvalidName, NotFound
from edgellm.paths import Paths
from edgellm.server import keys
from edgellm.server.keys import KeyRing, hashed


def ring(paths: Paths, **options: Any) -> KeyRing:
    return KeyRing.of(Settings(), keys.path_of(paths), **options)


def test_no_file_no_keys(paths: Paths) -> None:
    assert keys.stored(keys.path_of(paths)) == ()
    assert not ring(paths).required()
    assert ring(paths, always=True).required()


def test_a_key_is_kept_as_its_hash_in_a_file_of_this_user_only(paths: Paths) -> None:
    key = keys.add(paths, "laptop")
    assert key.startswith("edge-")
    assert len(key) > 45
    path = keys.path_of(paths)
    assert key not in path.read_text()
    assert hashed(key).hex() in path.read_text()
    if os.name == "posix":
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    (stored,) = keys.stored(path)
    assert (stored.name, stored.shown) == ("laptop", key[:9])
    assert ring(paths).hashes() == (hashed(key),)


def test_a_running_daemon_sees_what_is_added_and_revoked(paths: Paths) -> None:
    now = ring(paths)
    assert not now.required()
    first, second = keys.add(paths, "a"), keys.add(paths, "b")
    assert now.hashes() == (hashed(first), hashed(second))
    keys.remove(paths, "a")
    assert now.hashes() == (hashed(second),)
    keys.remove(paths, "b")
    assert not now.required()


def test_keys_of_the_settings_count_too(paths: Paths) -> None:
    both = KeyRing.of(Settings(api_keys=("mine",)), keys.path_of(paths))
    key = keys.add(paths, "a")
    assert set(both.hashes()) == {hashed("mine"), hashed(key)}


def test_names_are_unique_and_plain(paths: Paths) -> None:
    keys.add(paths, "a")
    with pytest.raises(InvalidName, match="already"):
        keys.add(paths, "a")
    for name in ("", "A", "a b", "../x", "a" * 65, "-x", "\x1b[2J"):
        with pytest.raises(InvalidName):
            keys.add(paths, name)
    with pytest.raises(NotFound):
        keys.remove(paths, "b")
    assert [key.name for key in keys.stored(keys.path_of(paths))] == ["a"]


DAMAGED = [b"", b"{}", b"not JSON", b'{"version": 1, "keys": [{"name": "a"}]}', b"\xff"]
SHORT = msgspec.json.encode(
    {"version": 1, "keys": [{"name": "a", "sha256": "00", "shown": "edge-", "created": "2026-01-01T00:00:00Z"}]}
)


@pytest.mark.parametrize("content", [*DAMAGED, SHORT])
def test_a_damaged_file_opens_nothing_and_leaves_nothing_open(
    content: bytes, paths: Paths, caplog: pytest.LogCaptureFixture
) -> None:
    now = ring(paths)
    key = keys.add(paths, "a")
    assert hashed(key) in now.hashes()
    keys.path_of(paths).write_bytes(content)
    assert now.hashes() == ()
    assert now.required()
    assert "damaged" in caplog.text
    assert "make the keys anew" in caplog.text
    with pytest.raises(ConfigError, match="damaged"):
        keys.add(paths, "b")
    assert keys.path_of(paths).read_bytes() == content


@pytest.mark.skipif(os.name != "posix", reason="POSIX modes")
def test_a_file_that_others_may_read_or_write_is_not_believed(paths: Paths) -> None:
    keys.add(paths, "a")
    path = keys.path_of(paths)
    for mode in (0o640, 0o604, 0o622):
        path.chmod(mode)
        with pytest.raises(ConfigError) as caught:
            keys.stored(path)
        assert caught.value.hint == f"chmod 600 {path}"
        assert ring(paths).hashes() == ()
        assert ring(paths).required()
    path.chmod(0o600)
    assert len(ring(paths).hashes()) == 1
