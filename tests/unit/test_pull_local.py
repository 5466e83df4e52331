"""Importing a .gguf file of this machine."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

import pytest
from gguf_files import STRING, TENSORS, U16, build, key, model_keys, tiny

from edgellm.errors import BadModelFile, DiskFull, EdgeError, InvalidName, InvalidRequest, NotFound
from edgellm.library import staging
from edgellm.library.pull import PullProgress, PullResult, pull
from edgellm.library.store import Store
from edgellm.paths import Paths


class Import:
    """Pulls, keeping what was reported."""

    def __init__(self, paths: Paths) -> None:
        self.paths = paths
        self.reports: list[PullProgress] = []

    def __call__(self, reference: str | Path, name: str | None = None) -> PullResult:
        self.reports.clear()
        return pull(str(reference), name=name, paths=self.paths, report=self.reports.append)

    @property
    def stages(self) -> list[str]:
        return list(dict.fromkeys(report.stage for report in self.reports))


@pytest.fixture
def do(paths: Paths) -> Import:
    return Import(paths)


@pytest.fixture
def some(tmp_path: Path) -> Path:
    path = tmp_path / "Some Model.Q4_1.gguf"
    path.write_bytes(tiny())
    return path


def leftovers(paths: Paths) -> list[Path]:
    return [path for path in (paths.models / "partial").iterdir() if path.suffix != ".lock"]


def test_round_trip(do: Import, some: Path, paths: Paths) -> None:
    result = do(some, "mine")
    assert not result.already
    store, made = Store(paths), result.manifest
    assert store.require("mine") == made
    assert store.model_path(made).read_bytes() == tiny()
    assert some.read_bytes() == tiny()
    assert made.model.source == f"file:{some}"
    assert (made.title, made.summary.quantization, made.licence) == ("Tiny", "Q4_1", "unknown")
    assert do.stages == ["resolve", "copy", "publish"]
    copied = [report for report in do.reports if report.stage == "copy"]
    assert (copied[-1].done, copied[-1].total) == (len(tiny()), len(tiny()))
    assert leftovers(paths) == []


def test_the_copy_is_the_store_s_own(do: Import, some: Path, paths: Paths) -> None:
    made = do(some, "mine").manifest
    with some.open("r+b") as file:
        file.write(b"edited")
    some.unlink()
    assert Store(paths).model_path(made).read_bytes() == tiny()


def test_again_is_already_there(do: Import, some: Path) -> None:
    first = do(some, "mine")
    again = do(some, "mine")
    assert again == PullResult(first.manifest, already=True)
    assert "copy" not in do.stages


def test_what_is_here_and_damaged_is_fetched_again(do: Import, some: Path, paths: Paths) -> None:
    """Of the right size, so that only its digest tells."""
    first = do(some, "mine")
    blob = Store(paths).model_path(first.manifest)
    blob.chmod(0o644)
    blob.write_bytes(tiny()[:-1] + b"!")
    assert not do(some, "mine").already
    assert blob.read_bytes() == tiny()
    assert do(some, "mine").already


def test_the_same_contents_are_not_copied_again(do: Import, some: Path, tmp_path: Path, paths: Paths) -> None:
    do(some, "one")
    other = tmp_path / "other.gguf"
    other.write_bytes(tiny())
    result = do(other, "two")
    assert not result.already
    assert do.stages == ["resolve", "verify", "publish"]
    assert len(list((paths.models / "blobs").iterdir())) == 1
    Store(paths).remove("one")
    assert Store(paths).model_path(result.manifest).exists()


@pytest.mark.skipif(sys.platform in ("win32", "darwin"), reason="file names there are text")
def test_a_file_name_that_is_no_text(do: Import, tmp_path: Path, paths: Paths) -> None:
    path = Path(os.fsdecode(os.fsencode(tmp_path) + b"/gr\xfcn.gguf"))
    path.write_bytes(tiny())
    made = do(path, "mine").manifest
    assert made.model.source == f"file:{tmp_path}/gr?n.gguf"
    assert Store(paths).require("mine") == made
    path.write_bytes(tiny("Edited"))
    assert not do(path, "mine").already  # the same file, edited: no conflict


def test_a_name_from_the_file(do: Import, some: Path) -> None:
    assert str(do(some).manifest.full_name) == "some-model.q4_1:latest"


def test_no_name_can_be_made(do: Import, tmp_path: Path) -> None:
    path = tmp_path / "模型.gguf"
    path.write_bytes(tiny())
    with pytest.raises(InvalidRequest, match="no model name") as caught:
        do(path)
    assert "--name" in (caught.value.hint or "")


def test_an_edited_file_replaces_its_model(do: Import, some: Path, paths: Paths) -> None:
    do(some, "mine")
    some.write_bytes(tiny("Edited"))
    result = do(some, "mine")
    assert (result.already, result.manifest.title) == (False, "Edited")
    assert len(list((paths.models / "blobs").iterdir())) == 1


@pytest.mark.parametrize("title", ["Else", "A longer name, another size"])
def test_a_taken_name_is_refused_before_copying(
    do: Import, some: Path, tmp_path: Path, title: str, paths: Paths
) -> None:
    do(some, "mine")
    other = tmp_path / "other.gguf"
    other.write_bytes(tiny(title))
    with pytest.raises(InvalidRequest, match="mine:latest is taken by another model") as caught:
        do(other, "mine")
    assert "--name" in (caught.value.hint or "")
    assert "copy" not in do.stages
    assert Store(paths).require("mine").title == "Tiny"


def test_paths_relative_and_with_a_tilde(
    do: Import, some: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("USERPROFILE", str(tmp_path))
    sources = {do(form, "mine").manifest.model.source for form in (f"./{some.name}", some.name, f"~/{some.name}")}
    assert sources == {f"file:{some}"}


def test_licence_from_the_file(do: Import, tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(tiny("Tiny", key("general.license", STRING, "apache-2.0")))
    assert do(path).manifest.licence == "apache-2.0"


ADAPTER = build(model_keys("x", key("general.type", STRING, "adapter")), TENSORS)
PART = build(model_keys("x", key("split.count", U16, 3)), TENSORS)
NOT_A_MODEL = {
    "other bytes": (b"PK\3\4" + b"\0" * 100, "is no GGUF file"),
    "any text": (b"root:x:0:0:root:/root:/bin/bash\n", "is no GGUF file: it begins with 'root'"),
    "cut short": (tiny()[:-1], "data"),
    "an adapter": (ADAPTER, "general.type is 'adapter'"),
    "one part of three": (PART, "split.count is 3"),
    "no weights": (build(model_keys("x"), ()), "tensor count is 0"),
}


@pytest.mark.parametrize("case", NOT_A_MODEL)
def test_what_is_not_a_whole_model_is_refused(case: str, do: Import, tmp_path: Path, paths: Paths) -> None:
    data, expected = NOT_A_MODEL[case]
    path = tmp_path / "m.gguf"
    path.write_bytes(data)
    with pytest.raises(BadModelFile) as caught:
        do(path, "mine")
    assert expected in caught.value.message
    assert caught.value.hint
    assert not paths.models.exists()


def test_case_08_odd_files_are_refused_at_once(do: Import, tmp_path: Path) -> None:
    odd = [Path("/dev/zero")]  # a folder may be a model as its authors publish it
    if hasattr(os, "mkfifo"):
        os.mkfifo(tmp_path / "pipe.gguf")
        odd.append(tmp_path / "pipe.gguf")
    for path in odd:
        with pytest.raises(BadModelFile, match="not a regular file"):  # and not at the end of what has none
            do(path, "mine")


@pytest.mark.parametrize(
    ("reference", "kind"),
    [
        ("./absent.gguf", NotFound),
        ("absent.gguf", NotFound),
        ("owner/repository", NotFound),
        ("/absent/" + "x" * 300, EdgeError),
        ("bad\0path/x", NotFound),
        ("modelscope:owner/repository", InvalidRequest),
        ("ftp://example.org/m.gguf", InvalidRequest),
        ("s3://bucket/m.gguf", InvalidRequest),
        ("file:///m.gguf", InvalidRequest),
        ("", InvalidName),
        ("Upper", InvalidName),
        ("nosuchmodel", NotFound),
        ("smollm2:134m", NotFound),
    ],
)
def test_references_that_cannot_be_pulled(reference: str, kind: type[EdgeError], do: Import) -> None:
    with pytest.raises(kind) as caught:
        do(reference)
    assert caught.value.hint
    if kind is InvalidRequest:
        assert "./model.gguf" in caught.value.hint


@pytest.mark.parametrize(("name", "error"), [("mymodel", NotFound), ("MyModel", InvalidName)])
def test_a_file_with_the_name_of_a_model_is_pointed_out(
    do: Import, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, error: type[EdgeError]
) -> None:
    (tmp_path / name).write_bytes(tiny())
    monkeypatch.chdir(tmp_path)
    with pytest.raises(error) as caught:
        do(name)
    assert f"./{name}" in (caught.value.hint or "")


def test_a_bad_name_is_refused_first(do: Import, some: Path, paths: Paths) -> None:
    with pytest.raises(InvalidName):
        do(some, "../mine")
    assert not paths.models.exists()


def test_no_room_is_noticed_before_copying(
    do: Import, some: Path, paths: Paths, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = shutil.disk_usage(some)
    monkeypatch.setattr("shutil.disk_usage", lambda path: usage._replace(free=staging.SPARE + 10))
    with pytest.raises(DiskFull, match="10 B can be used") as caught:
        do(some, "mine")
    assert "EDGELLM_HOME" in (caught.value.hint or "")
    assert "copy" not in do.stages
    assert leftovers(paths) == []


def test_a_disk_that_fills_up_while_copying(
    do: Import, some: Path, paths: Paths, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(handle: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(DiskFull, match="No space left"):
        do(some, "mine")
    assert "publish" not in do.stages  # the file's own flush failed, not the manifest's
    assert Store(paths).list() == []
    assert leftovers(paths) == []


def test_leftovers_of_killed_imports_are_swept_and_running_ones_are_not(do: Import, some: Path, paths: Paths) -> None:
    from filelock import FileLock

    partial = paths.models / "partial"
    for key_ in ("dead", "alive"):
        (partial / key_).mkdir(parents=True)
        (partial / key_ / "file").write_bytes(b"half")
    with FileLock(str(partial / "alive.lock")):
        do(some, "mine")
    assert [path.name for path in leftovers(paths)] == ["alive"]
