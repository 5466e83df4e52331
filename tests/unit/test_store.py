"""The store: blobs shared by names, manifests by version, damage reported and never in the way."""

from __future__ import annotations

import errno
import hashlib
import json
import mmap
from datetime import UTC, datetime, timedelta
from pathlib import Path

import msgspec
import pytest
from gguf_files import tiny

from edgellm.contracts.request import Sampling
from edgellm.errors import BadModelFile, DiskFull, InvalidName, InvalidRequest, LibraryError, NotFound
from edgellm.formats.summary import ModelSummary
from edgellm.library import staging
from edgellm.library import store as module
from edgellm.library.manifest import Manifest, StoredFile
from edgellm.library.names import ModelName, parse_name
from edgellm.library.store import Store
from edgellm.paths import Paths

SUMMARY = ModelSummary("Tiny", "llama", 576, "Q4_1", 128, 2, True)


@pytest.fixture
def store(paths: Paths) -> Store:
    return Store(paths)


def manifest(name: str, data: bytes, source: str = "file:/a.gguf") -> Manifest:
    full = parse_name(name)
    file = StoredFile("model", f"sha256:{hashlib.sha256(data).hexdigest()}", len(data), source)
    return Manifest(
        name=full.name,
        tag=full.tag,
        files=(file,),
        licence="MIT",
        created=datetime(2026, 1, 2, tzinfo=UTC),
        summary=SUMMARY,
        sampling=Sampling(temperature=0.2),
    )


def put(store: Store, paths: Paths, name: str, data: bytes | None = None, source: str = "file:/a.gguf") -> Manifest:
    data = tiny() if data is None else data
    made = manifest(name, data, source)
    staged = paths.models / "partial" / "x"
    staged.parent.mkdir(parents=True, exist_ok=True)
    staged.write_bytes(data)
    store.publish(made, {made.model.digest: staged})
    return made


def blobs(paths: Paths) -> list[str]:
    return sorted(path.name for path in (paths.models / "blobs").iterdir())


def manifest_file(paths: Paths, name: str) -> Path:
    full = parse_name(name)
    return paths.models / "manifests" / full.name / f"{full.tag}.json"


def test_an_empty_store(store: Store, paths: Paths) -> None:
    assert store.list() == []
    assert store.get(ModelName("a")) is None
    assert store.last_used("a") is None
    assert not paths.models.exists()  # reading makes nothing


def test_round_trip(store: Store, paths: Paths) -> None:
    made = put(store, paths, "mine:1b")
    assert store.get(ModelName("mine", "1b")) == made
    assert store.list() == [made]
    assert store.require("mine:1b") == made
    path = store.model_path(made)
    assert path == paths.models / "blobs" / made.model.digest.replace(":", "-")
    assert path.read_bytes() == tiny()
    assert (str(made.full_name), made.size) == ("mine:1b", len(tiny()))
    content = json.loads(manifest_file(paths, "mine:1b").read_text())
    assert content["version"] == 1
    assert list((paths.models / "partial").iterdir()) == []


def test_names_and_tags_are_sorted_and_apart(store: Store, paths: Paths) -> None:
    for name in ("b:1", "a:2", "a:1", "a"):
        put(store, paths, name)
    assert [str(made.full_name) for made in store.list()] == ["a:1", "a:2", "a:latest", "b:1"]


def test_a_blob_goes_with_the_last_name_that_uses_it(store: Store, paths: Paths) -> None:
    size = put(store, paths, "a").size
    put(store, paths, "b")
    put(store, paths, "c", tiny("Other"))
    assert len(blobs(paths)) == 2
    assert store.remove("a") == 0
    assert len(blobs(paths)) == 2
    assert store.remove(ModelName("b")) == size
    assert blobs(paths) == [store.require("c").model.digest.replace(":", "-")]
    assert not (paths.models / "manifests" / "a").exists()


def test_replacing_a_name_drops_what_it_held(store: Store, paths: Paths) -> None:
    put(store, paths, "a", tiny("Old"))
    new = put(store, paths, "a", tiny("New"))
    assert blobs(paths) == [new.model.digest.replace(":", "-")]


@pytest.mark.parametrize(
    ("old", "new", "allowed"),
    [
        ("file:/a.gguf", "file:/a.gguf", True),
        ("file:/a.gguf", "file:/b.gguf", False),
        ("pypi:p==1/x.gguf", "pypi:p==2/y.gguf", True),
        ("pypi:p==1/x.gguf", "pypi:q==1/x.gguf", False),
        ("pypi:p==1/x.gguf", "file:/x.gguf", False),
    ],
)
def test_a_name_is_not_taken_from_another_model(store: Store, paths: Paths, old: str, new: str, allowed: bool) -> None:
    before = put(store, paths, "a", tiny("Old"), old)
    put(store, paths, "a", tiny("Old"), new)  # the same contents from anywhere are no conflict
    put(store, paths, "a", tiny("Old"), old)
    if allowed:
        assert put(store, paths, "a", tiny("New"), new) == store.require("a")
        return
    with pytest.raises(InvalidRequest, match="taken by another model"):
        put(store, paths, "a", tiny("New"), new)
    assert store.require("a") == before


DAMAGE = {
    "empty": b"",
    "cut short": b'{"version": 1, "name": "a", ',
    "not JSON": b"\xff\xfe\x00",
    "no version": b"{}",
    "a list": b"[]",
    "no files": b'{"version": 1, "name": "a", "tag": "latest", "files": []}',
}


@pytest.mark.parametrize("case", DAMAGE)
def test_a_damaged_manifest_is_reported_and_hides_nothing(case: str, store: Store, paths: Paths) -> None:
    put(store, paths, "a")
    good = put(store, paths, "b")
    manifest_file(paths, "a").write_bytes(DAMAGE[case])
    assert store.list() == [good]
    (damaged,) = store.scan().damaged
    assert damaged.name == ModelName("a")
    assert "damaged" in damaged.problem
    assert "edgellm rm a" in damaged.hint
    with pytest.raises(LibraryError, match="damaged"):
        store.require("a")
    store.remove("a")
    assert store.scan().damaged == []
    assert store.model_path(good).exists()


@pytest.mark.parametrize(
    "digest",
    ["sha256:../../etc/passwd", "sha256:" + "0" * 63, "sha256:" + "0" * 65, "sha256:" + "0" * 64 + "\n"],
)
def test_case_06_a_digest_is_never_a_path(digest: str, store: Store, paths: Paths) -> None:
    put(store, paths, "a")
    file = manifest_file(paths, "a")
    content = json.loads(file.read_text())
    content["files"][0]["digest"] = digest
    file.write_text(json.dumps(content))
    with pytest.raises(LibraryError, match="damaged"):
        store.get(ModelName("a"))


def test_a_manifest_about_another_name_is_damaged(store: Store, paths: Paths) -> None:
    put(store, paths, "a")
    manifest_file(paths, "a").rename(manifest_file(paths, "a:other"))
    assert [damaged.name for damaged in store.scan().damaged] == [ModelName("a", "other")]


def test_a_newer_manifest_says_so_and_is_not_overwritten(store: Store, paths: Paths) -> None:
    made = put(store, paths, "a")
    file = manifest_file(paths, "a")
    newer = msgspec.json.encode({"version": 2, "parts": [made.model.digest]})
    file.write_bytes(newer)
    with pytest.raises(LibraryError, match="newer edgellm") as caught:
        store.require("a")
    assert "update edgellm" in (caught.value.hint or "")
    with pytest.raises(LibraryError, match="newer edgellm"):
        put(store, paths, "a")
    assert file.read_bytes() == newer
    put(store, paths, "b")
    store.remove("b")
    assert len(blobs(paths)) == 1  # what a newer manifest mentions is kept


def test_a_damaged_manifest_is_mended_by_publishing_again(store: Store, paths: Paths) -> None:
    put(store, paths, "a")
    manifest_file(paths, "a").write_bytes(b"{")
    assert put(store, paths, "a", tiny(), "file:/elsewhere.gguf") == store.require("a")


def test_a_missing_or_short_blob_is_reported(store: Store, paths: Paths) -> None:
    made = put(store, paths, "a")
    blob = store.model_path(made)
    blob.write_bytes(b"short")
    assert store.list() == []
    assert "missing or incomplete" in store.scan().damaged[0].problem
    blob.unlink()
    with pytest.raises(LibraryError, match="missing or incomplete"):
        store.model_path(made)
    put(store, paths, "a")
    assert store.model_path(made).read_bytes() == tiny()


def test_a_file_that_the_system_does_not_give_is_not_called_damaged(
    store: Store, paths: Paths, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = put(store, paths, "a")
    for number, hint in ((errno.ENOMEM, "limits"), (errno.EMFILE, "limits"), (errno.EACCES, "permissions")):

        def refuse(*_: object, number: int = number, **__: object) -> None:
            raise OSError(number, "not now")

        monkeypatch.setattr(mmap, "mmap", refuse)
        with pytest.raises(LibraryError, match=r"the file of a:latest cannot be read \(.*: not now\)") as caught:
            store.header(made)
        assert hint in (caught.value.hint or "")


def test_a_file_that_was_overwritten_is_named_with_all_that_keeps_it(store: Store, paths: Paths) -> None:
    made = put(store, paths, "a")
    put(store, paths, "b")
    assert store.header(made).architecture == "llama"
    blob = store.model_path(made)
    blob.write_bytes(bytes(len(tiny())))
    with pytest.raises(BadModelFile, match=r"the file of a:latest is damaged \(.*is no GGUF file") as caught:
        store.header(made)
    # Removed under one name only, it would stay, and the pull after that would find it here.
    assert caught.value.hint == "`edgellm rm a:latest b:latest`, then pull it again"


def test_files_that_are_not_ours_are_left_alone(store: Store, paths: Paths) -> None:
    put(store, paths, "a")
    folder = paths.models / "manifests"
    for odd in (".DS_Store", "a/.hidden.json", "a/UPPER.json", "a/notes.txt", "loose.json"):
        (folder / odd).write_text("x")
    (folder / "Not Ours").mkdir()
    assert [str(made.full_name) for made in store.list()] == ["a:latest"]
    assert store.scan().damaged == []


def test_not_found_says_what_was_meant(store: Store, paths: Paths) -> None:
    put(store, paths, "tinymodel:1b")
    with pytest.raises(NotFound) as caught:
        store.require("tinymodel:2b")
    assert caught.value.hint == "did you mean tinymodel:1b?"
    with pytest.raises(NotFound) as caught:
        store.require("smollm2")
    assert caught.value.message == "smollm2 has not been pulled"
    assert caught.value.hint == "`edgellm pull smollm2` fetches it (94 MiB)"
    put(store, paths, "smollm2:360m-mine")
    with pytest.raises(NotFound) as caught:
        store.require("smollm2")
    assert caught.value.hint == "smollm2:360m-mine is here; `edgellm pull smollm2` fetches it (94 MiB)"
    store.remove("smollm2:360m-mine")
    with pytest.raises(NotFound) as caught:
        store.require("smollm2:136m")
    assert caught.value.hint == "did you mean smollm2:135m? `edgellm pull smollm2:135m` fetches it (94 MiB)"
    with pytest.raises(NotFound) as caught:
        store.remove("zzzz")
    assert caught.value.message == "no model named zzzz"
    assert caught.value.hint
    with pytest.raises(InvalidName):
        store.require("../../etc/passwd")


def test_an_alias_means_the_model_unless_a_model_has_that_name(store: Store, paths: Paths) -> None:
    aliased = put(store, paths, "smollm2:135m")
    assert store.require("smollm2") == aliased
    own = put(store, paths, "smollm2", tiny("Own"))
    assert store.require("smollm2") == own
    store.remove("smollm2")
    assert store.require("smollm2") == aliased
    store.remove("smollm2")
    assert store.list() == []


def test_last_used(store: Store, paths: Paths) -> None:
    put(store, paths, "smollm2:135m")
    before = manifest_file(paths, "smollm2:135m").read_bytes()
    assert store.last_used("smollm2:135m") is None
    store.touch("smollm2")  # by alias
    used = store.last_used(ModelName("smollm2", "135m"))
    assert used is not None
    assert abs(datetime.now(UTC) - used) < timedelta(seconds=10)
    assert manifest_file(paths, "smollm2:135m").read_bytes() == before
    store.remove("smollm2:135m")
    assert not (paths.models / "manifests" / "smollm2").exists()


def test_touching_never_fails(store: Store, paths: Paths) -> None:
    store.touch("absent")
    store.touch("../bad")
    assert not paths.models.exists()
    put(store, paths, "a:1")
    store.touch("a:2")
    assert store.last_used("a:2") is None


def test_a_busy_store_is_an_error_not_a_hang(store: Store, paths: Paths, monkeypatch: pytest.MonkeyPatch) -> None:
    from filelock import FileLock

    put(store, paths, "a")
    monkeypatch.setattr(module, "LOCK_S", 0.1)
    with FileLock(str(paths.models / ".lock")), pytest.raises(LibraryError, match="another edgellm"):
        Store(paths).remove("a")
    assert store.list()


def test_a_full_disk_while_publishing_leaves_the_old_model(
    store: Store, paths: Paths, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = put(store, paths, "a", tiny("Old"))

    def full(path: Path, data: bytes) -> None:
        raise OSError(28, "No space left on device", str(path))

    monkeypatch.setattr("edgellm.platform.write_private", full)
    with pytest.raises(DiskFull, match="No space left"):
        put(store, paths, "a", tiny("New"))
    assert store.require("a") == old
    assert store.model_path(old).read_bytes() == tiny("Old")


def test_publishing_without_the_file_is_refused(store: Store, paths: Paths) -> None:
    with pytest.raises(LibraryError, match="removed meanwhile"):
        store.publish(manifest("a", tiny()))
    assert store.list() == []


def test_foreign_errors_become_library_errors(tmp_path: Path) -> None:
    with pytest.raises(LibraryError, match="cannot do it") as caught, staging.disk_errors("cannot do it"):
        (tmp_path / "absent" / "x").write_text("")
    assert str(tmp_path) in caught.value.message
    with pytest.raises(NotFound), staging.disk_errors("cannot do it"):
        raise NotFound("as it is")
