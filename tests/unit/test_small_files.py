"""Something else in a file's place: a pipe would block for ever, and a device never end."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from edgellm import mentions
from edgellm.cli.logs import Tail
from edgellm.cli.talk.conversation import _saved
from edgellm.cli.talk.keyboard import History
from edgellm.client import info_path, read_info
from edgellm.config import load_settings
from edgellm.errors import ConfigError, EdgeError, LibraryError
from edgellm.library import latest
from edgellm.library.catalogue import Catalogue
from edgellm.library.jobs import partials, read_job
from edgellm.library.store import Store
from edgellm.library.transfer.ranges import bytes_done
from edgellm.paths import Paths
from edgellm.platform import open_private_log
from edgellm.server import keys
from edgellm.small_files import LARGEST, NotRegular, open_regular, read_small, read_small_text

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="makes pipes and devices by name")


def _pipe(path: Path) -> None:
    os.mkfifo(path)


def _device(path: Path) -> None:
    path.symlink_to("/dev/zero")


def _folder(path: Path) -> None:
    path.mkdir()


def _large(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(LARGEST + 1)


KINDS = {"a pipe": _pipe, "a device": _device, "a folder": _folder, "larger than": _large}


@pytest.fixture(params=list(KINDS))
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def _put(kind: str, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    KINDS[kind](path)


def _ends(call: Callable[[], object]) -> object:
    """What `call` returns or raises. It runs beside, so that one that blocks fails its test and not the whole run."""
    got: list[object] = []

    def run() -> None:
        try:
            got.append(call())
        except Exception as error:
            got.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(60.0)
    assert got, "it blocks"
    return got[0]


def test_settings_say_what_is_in_their_place(kind: str, paths: Paths) -> None:
    _put(kind, paths.config_file)
    error = _ends(lambda: load_settings(paths, {}))
    assert isinstance(error, ConfigError)
    assert f"{paths.config_file} cannot be read: it is {kind}" in error.message


def test_the_catalogue_says_what_is_in_its_place(kind: str, paths: Paths) -> None:
    _put(kind, paths.catalogue_overlay)
    error = _ends(lambda: Catalogue.load(paths))
    assert isinstance(error, ConfigError)
    assert f"{paths.catalogue_overlay}: it is {kind}" in error.message


def test_keys_say_what_is_in_their_place_and_open_nothing(kind: str, paths: Paths) -> None:
    _put(kind, keys.path_of(paths))
    if kind != "a device":  # whose mode is not ours
        keys.path_of(paths).chmod(0o600)
    error = _ends(lambda: keys.stored(keys.path_of(paths)))
    assert isinstance(error, ConfigError)
    assert f"is {kind}" in error.message
    assert _ends(keys.KeyRing((), keys.path_of(paths)).required) is True


def test_a_manifest_says_what_is_in_its_place_and_hides_no_other(kind: str, paths: Paths) -> None:
    _put(kind, paths.models / "manifests" / "m" / "latest.json")
    listing = _ends(Store(paths).scan)
    assert [str(damaged.name) for damaged in listing.damaged] == ["m:latest"]  # type: ignore[attr-defined]
    error = _ends(lambda: Store(paths).require("m"))
    assert isinstance(error, LibraryError)
    assert f"is {kind}" in error.message


def test_what_only_remembers_counts_for_nothing(kind: str, paths: Paths, tmp_path: Path) -> None:
    _put(kind, info_path(paths))
    assert _ends(lambda: read_info(paths)) is None
    _put(kind, paths.models / "partial" / "k" / "job.json")
    assert _ends(lambda: read_job(paths.models / "partial" / "k")) is None
    assert _ends(lambda: partials(paths)) == []
    _put(kind, tmp_path / "table")
    assert _ends(lambda: bytes_done(tmp_path / "table")) == 0
    if kind != "larger than":  # of which it reads the beginning
        _put(kind, paths.last_chat)
        assert _ends(lambda: latest.latest(paths)) is None


def test_files_named_in_a_conversation(kind: str, tmp_path: Path) -> None:
    _put(kind, tmp_path / "saved")
    error = _ends(lambda: _saved(tmp_path / "saved"))
    assert isinstance(error, EdgeError)
    assert f"is {kind}" in error.message or kind == "larger than"  # than what a conversation may be
    told = _ends(lambda: mentions.with_files(f"look at @{tmp_path / 'saved'}"))
    assert isinstance(told, EdgeError if kind == "larger than" else str)


def test_a_log_is_no_pipe(tmp_path: Path) -> None:
    _put("a pipe", tmp_path / "log")
    assert isinstance(_ends(lambda: Tail(tmp_path / "log")), NotRegular)
    assert isinstance(_ends(lambda: open_private_log(tmp_path / "log")), OSError)


def test_a_log_whose_place_a_pipe_takes_is_read_on(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("first\n")
    tail = Tail(log)
    assert tail.new() == ["first"]
    with log.open("a") as written:
        log.unlink()
        _put("a pipe", log)
        assert _ends(tail.new) == []
        written.write("second\n")
    assert _ends(tail.new) == ["second"]
    tail.close()


def test_what_was_typed_before_is_no_pipe(tmp_path: Path) -> None:
    _put("a pipe", tmp_path / "typed")
    history = _ends(lambda: History(tmp_path / "typed"))
    assert isinstance(history, History)
    assert _ends(history.load_history_strings) == []
    assert _ends(lambda: history.store_string("x")) is None


def test_a_file_that_is_replaced_by_a_pipe_as_it_is_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "regular").write_bytes(b"")
    _pipe(tmp_path / "file")
    regular, really = (tmp_path / "regular").stat(), Path.stat
    monkeypatch.setattr(Path, "stat", lambda path: regular if path.name == "file" else really(path))
    assert isinstance(_ends(lambda: open_regular(tmp_path / "file")), NotRegular)


def test_it_is_read_to_the_limit_and_not_beyond(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_bytes(b"12345")
    assert read_small(file, 5) == b"12345"
    with pytest.raises(OSError, match="is larger than 4 bytes"):
        read_small(file, 4)


@pytest.mark.parametrize("name", ["config_file", "catalogue_overlay"])
def test_what_windows_editors_write(name: str, paths: Paths) -> None:
    file: Path = getattr(paths, name)
    file.parent.mkdir(parents=True, exist_ok=True)
    text = "port = 1\r\n" if name == "config_file" else "schema_version = 1\r\n"
    file.write_bytes(b"\xef\xbb\xbf" + text.encode())
    assert load_settings(paths, {}).settings.port if name == "config_file" else Catalogue.load(paths).entries()
    file.write_text(text, encoding="utf-16")
    with pytest.raises(ConfigError, match="is not text in UTF-8"):
        load_settings(paths, {}) if name == "config_file" else Catalogue.load(paths)
    with pytest.raises(OSError, match="UTF-8"):
        read_small_text(file)
