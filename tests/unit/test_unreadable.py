"""Files that hold something else than they should: an error that names them, whatever they hold."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import platformdirs
import pytest

from edgellm.client import info_path, read_info
from edgellm.config import load_settings
from edgellm.errors import ConfigError, LibraryError
from edgellm.library.catalogue import Catalogue
from edgellm.library.jobs import partials
from edgellm.library.names import parse_name
from edgellm.library.store import Store
from edgellm.paths import Paths, default_paths, expanded
from edgellm.platform import make_private_folder
from edgellm.server import keys

CONTENTS = {
    "nothing": b"",
    "zeros": bytes(4096),
    "another encoding": b'{"version": "\xff\xfe"}',
    "half": b'{"version": 1, "keys": [',
    "deep": b'{"version": ' + b"[" * 200_000,
    "a large number": b'{"version": ' + b"9" * 6000 + b"}",
    "another kind": b'["version"]',
}


@pytest.fixture(params=list(CONTENTS))
def content(request: pytest.FixtureRequest) -> bytes:
    return CONTENTS[request.param]


def test_daemon_json_counts_for_nothing(content: bytes, paths: Paths) -> None:
    make_private_folder(paths.runtime)
    info_path(paths).write_bytes(content)
    assert read_info(paths) is None


def test_a_manifest_is_damaged_and_hides_no_other(content: bytes, paths: Paths) -> None:
    store = Store(paths)
    file = paths.models / "manifests" / "m" / "latest.json"
    file.parent.mkdir(parents=True)
    file.write_bytes(content)
    (damaged,) = store.scan().damaged
    assert str(damaged.name) == "m:latest"
    assert "edgellm rm m:latest" in damaged.hint
    with pytest.raises(LibraryError, match="damaged"):
        store.require("m")
    store.remove(parse_name("m"))
    assert store.scan().damaged == []


def test_an_unfinished_pull_is_none(content: bytes, paths: Paths) -> None:
    folder = paths.models / "partial" / "k"
    folder.mkdir(parents=True)
    (folder / "job.json").write_bytes(content)
    assert partials(paths) == []


def test_keys_are_damaged(content: bytes, paths: Paths) -> None:
    make_private_folder(paths.config)
    file = keys.path_of(paths)
    file.write_bytes(content)
    file.chmod(0o600)
    with pytest.raises(ConfigError, match=r"keys\.json: it is damaged"):
        keys.stored(file)


@pytest.mark.parametrize("text", ["port = [[", "port = " + "9" * 6000, "port = " + "[" * 200_000, "port = 1\x00"])
def test_settings_and_catalogue_name_their_file(text: str, paths: Paths) -> None:
    make_private_folder(paths.config)
    paths.config_file.write_text(text)
    with pytest.raises(ConfigError, match=r"config\.toml is not valid TOML"):
        load_settings(paths, {})
    paths.catalogue_overlay.write_text(text)
    with pytest.raises(ConfigError, match=r"models\.toml"):
        Catalogue.load(paths)


def test_a_home_that_is_a_file_is_said_at_once(home: Path) -> None:
    home.write_text("not a folder")
    with pytest.raises(ConfigError, match=r"EDGELLM_HOME names .*, which is a file"):
        default_paths()


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="a place where nobody can make a folder")
def test_a_home_that_cannot_be_is_no_empty_one(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("EDGELLM_HOME", "/proc/x/y")
    with pytest.raises(
        ConfigError, match="EDGELLM_HOME names /proc/x/y, which is not there and cannot be made in /proc"
    ):
        default_paths()
    monkeypatch.setenv("EDGELLM_HOME", str(tmp_path / "x" / "y"))
    default_paths()
    assert list(tmp_path.iterdir()) == []
    monkeypatch.setattr(Path, "exists", lambda _: False)  # nor is the drive, on Windows
    with pytest.raises(ConfigError, match="cannot be made"):
        default_paths()


@pytest.mark.skipif(sys.platform in ("win32", "darwin"), reason="names that are any bytes")
@pytest.mark.parametrize("variable", ["EDGELLM_HOME", "HOME"])
def test_a_home_whose_name_is_no_text_is_refused(
    variable: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [name for name in os.environ if name.startswith("XDG_")] + ["EDGELLM_HOME"]:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv(variable, f"{tmp_path}/a\udcff")
    with pytest.raises(ConfigError, match=r"a\uFFFD.* is not UTF-8"):
        default_paths()


def test_a_user_without_a_home_is_told_what_helps(monkeypatch: pytest.MonkeyPatch) -> None:
    class Dirs:
        def __init__(self, *_: object, **__: object) -> None:
            pass

        @property
        def user_data_dir(self) -> str:
            raise RuntimeError("could not determine the home directory")

    monkeypatch.delenv("EDGELLM_HOME", raising=False)
    monkeypatch.setattr(platformdirs, "PlatformDirs", Dirs)
    with pytest.raises(ConfigError, match="no home folder") as caught:
        default_paths()
    assert "EDGELLM_HOME" in (caught.value.hint or "")


def test_a_home_of_nobody_is_a_name() -> None:
    assert expanded("~nobody-of-that-name/x") == Path("~nobody-of-that-name/x")
