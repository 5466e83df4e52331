"""Pulling from a hub with the real huggingface-hub: a server on the loopback speaks its protocol and adds faults."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from gguf_files import STRING, key
from hub_pulls import Pulls, nothing_published, stored
from hub_server import Hub, model, serving

from edgellm.errors import (
    BadModelFile,
    ChecksumMismatch,
    DiskFull,
    DownloadFailed,
    EdgeError,
    Forbidden,
    InvalidRequest,
    NotFound,
    Overloaded,
    Unauthorized,
)
from edgellm.library import staging
from edgellm.library.pull import PullResult
from edgellm.library.store import Store
from edgellm.library.transfer.target import FileTarget
from edgellm.paths import Paths

REPO = "org/My-Model-GGUF"
FILE = "My-Model-Q4_K_M.gguf"
NAME = f"hf:{REPO}:Q4_K_M"
SIZE = 3_000_000
DATA = model(SIZE)
SLACK = 400_000  # bytes on their way on connections that were given up


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    with serving() as server:
        monkeypatch.setenv("HF_ENDPOINT", server.hub.url)
        monkeypatch.delenv("HF_TOKEN", raising=False)
        server.add(REPO, {FILE: DATA, "README.md": b"hello"})
        yield server


@pytest.fixture
def do(paths: Paths) -> Pulls:
    return Pulls(paths)


def test_round_trip_and_already_there(hub: Hub, do: Pulls, paths: Paths) -> None:
    result = do(NAME)
    assert stored(paths, result) == DATA
    made = result.manifest
    assert (str(made.full_name), made.licence, made.title) == ("my-model:q4_k_m", "apache-2.0", "My-Model")
    assert made.model.source == f"hf:{REPO}@0123456789abcdef0123456789abcdef01234567/{FILE}"
    (said,) = do.announced
    assert (said.size, said.here, said.summary and said.summary.architecture) == (len(DATA), 0, "llama")
    progress = [(report.done, report.total) for report in do.reports if report.stage == "download"]
    assert progress[-1] == (len(DATA), len(DATA))
    assert not list(paths.models.glob("partial/*/"))
    before = len(hub.sent)
    assert do(NAME) == PullResult(made, already=True)
    assert len(hub.sent) == before
    Store(paths).model_path(made).write_bytes(DATA[:-1] + b"!")
    assert not do(NAME).already
    assert stored(paths, result) == DATA


def test_nothing_is_asked_that_the_pull_does_not_need(hub: Hub, do: Pulls) -> None:
    do(NAME)
    asked = {each.path.split("?")[0] for each in hub.seen if each.origin == "hub"}
    assert asked == {f"/api/models/{REPO}", f"/{REPO}/resolve/0123456789abcdef0123456789abcdef01234567/{FILE}"}


def test_ranges_come_over_several_connections_and_no_byte_twice(hub: Hub, do: Pulls) -> None:
    hub.faults.pause = lambda start, pos: 0.002
    do(NAME)
    assert len(hub.sent) > 4
    assert hub.bytes < len(DATA) + SLACK


@pytest.mark.parametrize("size", [100, 16_384, 40_000, 1_048_576, 1_048_577])
def test_sizes_around_the_borders(size: int, hub: Hub, do: Pulls, paths: Paths) -> None:
    data = model(size)
    hub.add(REPO, {FILE: data})
    assert stored(paths, do(NAME)) == data


# Faults that pass


def test_cuts(hub: Hub, do: Pulls, paths: Paths) -> None:
    hub.faults.pause = lambda start, pos: 0.002
    hub.faults.cut_after = [1 << 30, *[20_000, 0, 50_000, 8_192] * 5]
    assert stored(paths, do(NAME)) == DATA
    assert hub.bytes < len(DATA) + SLACK


def test_a_stall_is_given_up_and_tried_again(hub: Hub, do: Pulls, paths: Paths) -> None:
    hub.faults.stall_after = [1 << 30, 30_000]
    assert stored(paths, do(NAME)) == DATA


def test_a_connection_that_crawls_is_given_up(hub: Hub, do: Pulls, paths: Paths) -> None:
    crawling: list[int] = []

    def pause(start: int, pos: int) -> float:
        if start > 1 << 20 and not crawling:
            crawling.append(start)
        return 0.25 if crawling == [start] and pos < start + 65_536 else 0.001

    hub.faults.pause = pause
    assert stored(paths, do(NAME)) == DATA
    (start,) = crawling
    assert any(each and start < each[0] < start + 65_536 for each in hub.sent)  # taken up inside


def test_the_whole_file_instead_of_a_range(hub: Hub, do: Pulls, paths: Paths) -> None:
    hub.faults.ignore_ranges = True
    hub.faults.cut_after = [1 << 30, 400_000]
    assert stored(paths, do(NAME)) == DATA


def test_ranges_refused_half_way(hub: Hub, do: Pulls, paths: Paths) -> None:
    hub.faults.cut_after = [1 << 30, 100_000, 100_000, 100_000, 100_000]

    def pause(start: int, pos: int) -> float:
        hub.faults.ignore_ranges = len(hub.sent) > 5
        return 0.0

    hub.faults.pause = pause
    assert stored(paths, do(NAME)) == DATA


def test_an_address_that_expires(hub: Hub, do: Pulls, paths: Paths) -> None:
    def pause(start: int, pos: int) -> float:
        if len(hub.sent) >= 4:
            hub.faults.expired.add("1")
        return 0.0

    hub.faults.pause = pause
    assert stored(paths, do(NAME)) == DATA
    assert hub.signature > 1


@pytest.mark.parametrize("status", [429, 500, 503])
def test_a_busy_server(status: int, hub: Hub, do: Pulls, paths: Paths) -> None:
    for queue in (hub.faults.api, hub.faults.resolve, hub.faults.files):
        queue.append((status, {"Retry-After": "0"}))
    assert stored(paths, do(NAME)) == DATA
    assert f"{status}" in do.details


def test_wrong_bytes_once_are_replaced_and_only_they(hub: Hub, do: Pulls, paths: Paths) -> None:
    spoilt: list[int] = []

    def alter(pos: int, piece: bytes) -> bytes:
        if pos // 8192 in (150, 300) and spoilt.count(pos) == 0:
            spoilt.append(pos)
            return bytes(len(piece))
        return piece

    hub.faults.alter = alter
    assert stored(paths, do(NAME)) == DATA
    assert len(spoilt) == 2
    assert "second copy" in do.details


def test_wrong_bytes_always_are_refused(hub: Hub, do: Pulls, paths: Paths) -> None:
    hub.faults.alter = lambda pos, piece: piece if pos < 1 << 20 else bytes(len(piece))
    with pytest.raises(ChecksumMismatch, match="is not the announced file") as caught:
        do(NAME)
    assert caught.value.hint
    assert nothing_published(paths)
    hub.faults.alter = None
    assert stored(paths, do(NAME)) == DATA  # and nothing of it is used


HEADERS: dict[str, Callable[[dict[str, str]], dict[str, str]]] = {
    "another range": lambda headers: headers | {"Content-Range": f"bytes 0-99/{len(DATA)}"},
    "no range": lambda headers: {name: value for name, value in headers.items() if name != "Content-Range"},
    "compressed": lambda headers: headers | {"Content-Encoding": "gzip"},
}


@pytest.mark.parametrize("case", HEADERS)
def test_answers_that_are_not_what_was_asked(case: str, hub: Hub, do: Pulls, paths: Paths) -> None:
    asked: list[int] = []

    def headers(sent: dict[str, str]) -> dict[str, str]:
        asked.append(1)
        return HEADERS[case](sent) if len(asked) in (2, 3) else sent

    hub.faults.headers = headers
    assert stored(paths, do(NAME)) == DATA


def test_another_length_than_announced(hub: Hub, do: Pulls, paths: Paths) -> None:
    hub.faults.headers = lambda headers: headers | {"Content-Range": f"bytes 0-99/{len(DATA) + 1}"}
    with pytest.raises(ChecksumMismatch, match="were announced"):
        do(NAME)
    assert nothing_published(paths)


# Faults that do not pass


def test_a_connection_that_stays_away_leaves_what_came(hub: Hub, do: Pulls, paths: Paths) -> None:
    def pause(start: int, pos: int) -> float:
        if len(hub.sent) > 8:
            hub.faults.files = [(503, {})] * 1000
        return 0.002

    hub.faults.pause = pause
    with pytest.raises(DownloadFailed, match="answers 503") as caught:
        do(NAME)
    assert "goes on from there" in (caught.value.hint or "")
    assert nothing_published(paths)
    hub.faults.pause, hub.faults.files = lambda start, pos: 0.002, []
    before = hub.bytes
    assert stored(paths, do(NAME)) == DATA
    here = do.announced[-1].here
    assert here > 1 << 20
    assert hub.bytes - before < len(DATA) - here + (1 << 20) + SLACK  # the header is looked at again


def test_a_server_that_asks_for_too_much_patience(hub: Hub, do: Pulls, paths: Paths) -> None:
    hub.faults.api.append((429, {"Retry-After": "3600"}))
    with pytest.raises(Overloaded, match="slow down") as caught:
        do(NAME)
    assert caught.value.retry_after == 3600
    hub.faults.api.append((429, {"RateLimit": '"api";r=0;t=900'}))
    with pytest.raises(Overloaded) as caught:
        do(NAME)
    assert caught.value.retry_after == 900
    hub.faults.files.append((429, {"Retry-After": "3600"}))
    with pytest.raises(Overloaded):
        do(NAME)
    assert nothing_published(paths)


REFUSED: dict[str, tuple[str, list[tuple[int, dict[str, str]]], type[EdgeError], str]] = {
    "api 401": ("api", [(401, {})], Unauthorized, "HF_TOKEN"),
    "api 403": ("api", [(403, {})], Forbidden, "HF_TOKEN"),
    "api 404": ("api", [(404, {})], DownloadFailed, "HF_ENDPOINT"),
    "resolve 403": ("resolve", [(403, {})], Forbidden, "HF_TOKEN"),
    "resolve gone": ("resolve", [(404, {"X-Error-Code": "EntryNotFound"})], NotFound, "again"),
    "proxy": ("resolve", [(407, {})], DownloadFailed, "HTTPS_PROXY"),
    "files 404": ("files", [(404, {})], DownloadFailed, "HF_ENDPOINT"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refusals_say_the_way_out(case: str, hub: Hub, do: Pulls, paths: Paths) -> None:
    where, refusals, kind, hint = REFUSED[case]
    getattr(hub.faults, where).extend(refusals)
    with pytest.raises(kind) as caught:
        do(NAME)
    assert hint in (caught.value.hint or "")
    assert nothing_published(paths)


def test_a_repository_that_is_not_there(hub: Hub, do: Pulls) -> None:
    with pytest.raises(NotFound, match="no repository org/My-Mdel-GGUF") as caught:
        do("hf:org/My-Mdel-GGUF")
    assert f"did you mean hf:{REPO}?" in (caught.value.hint or "")
    with pytest.raises(NotFound, match="no such revision"):
        do(f"hf:{REPO}@v9:Q4_K_M")


@pytest.mark.parametrize("selector", ["Q4_K_S", "My-Model-Q5_K_M.gguf", "Q9"])
def test_a_quantisation_that_is_not_there(selector: str, hub: Hub, do: Pulls) -> None:
    with pytest.raises(NotFound, match=f"has no {selector}") as caught:
        do(f"hf:{REPO}:{selector}")
    assert "Q4_K_M (2.9 MiB)" in (caught.value.hint or "") or "Q4_K_M (3 MiB)" in (caught.value.hint or "")


def test_a_hub_that_is_not_there(do: Pulls, paths: Paths, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    with pytest.raises(DownloadFailed, match=r"127\.0\.0\.1:9") as caught:
        do(NAME)
    assert "HF_ENDPOINT" in (caught.value.hint or "")
    assert "trying again" in do.details


# Tokens


def test_a_gated_repository(hub: Hub, do: Pulls, paths: Paths, monkeypatch: pytest.MonkeyPatch) -> None:
    hub.gated.add(REPO)
    hub.token = "hf_right"
    with pytest.raises(Unauthorized, match="is gated") as caught:
        do(NAME)
    assert f"https://huggingface.co/{REPO}" in (caught.value.hint or "")
    monkeypatch.setenv("HF_TOKEN", "hf_wrong")
    with pytest.raises(Forbidden, match="not been let in"):
        do(NAME)
    monkeypatch.setenv("HF_TOKEN", "hf_right")
    assert stored(paths, do(NAME)) == DATA
    assert {each.authorization for each in hub.seen if each.origin == "files"} == {None}  # another origin
    assert hub.seen[-1].origin == "files"
    assert {each.authorization for each in hub.seen[-4:] if each.origin == "hub"} <= {"Bearer hf_right"}


def test_a_saved_token_is_not_for_a_mirror(
    hub: Hub, do: Pulls, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from huggingface_hub import constants

    saved = tmp_path / "token"
    saved.write_text("hf_saved")
    monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(saved))
    do(NAME)
    assert {each.authorization for each in hub.seen} == {None}


def test_no_redirect_away_from_encryption() -> None:
    import httpx2

    from edgellm.library.transfer.link import Link, Remote

    def answer(request: httpx2.Request) -> httpx2.Response:
        return httpx2.Response(302, headers={"Location": "http://files.example/x"})

    link = Link(Remote("https://hub.example/x", "x", token="t"), lambda response: DownloadFailed("no"), stall_s=1)
    link._http = httpx2.Client(transport=httpx2.MockTransport(answer))
    with pytest.raises(DownloadFailed, match="without encryption"):
        link.probe(10)


# The disk


def test_no_room_is_noticed_before_the_download(
    hub: Hub, do: Pulls, paths: Paths, monkeypatch: pytest.MonkeyPatch
) -> None:
    import shutil

    usage = shutil.disk_usage(paths.data.parent)
    monkeypatch.setattr("shutil.disk_usage", lambda path: usage._replace(free=staging.SPARE + 10))
    with pytest.raises(DiskFull, match="10 B can be used"):
        do(NAME)
    assert hub.sent == [(0, (1 << 20) - 1)]  # the look at its header


def test_a_disk_that_fills_up_keeps_what_came(
    hub: Hub, do: Pulls, paths: Paths, monkeypatch: pytest.MonkeyPatch
) -> None:
    written: list[int] = []
    honest = FileTarget.write

    def full(target: FileTarget, offset: int, data: bytes) -> None:
        written.append(len(data))
        if sum(written) > 2_000_000:
            raise OSError(28, "No space left on device")
        honest(target, offset, data)

    monkeypatch.setattr(FileTarget, "write", full)
    with pytest.raises(DiskFull, match="No space left"):
        do(NAME)
    assert nothing_published(paths)
    monkeypatch.setattr(FileTarget, "write", honest)
    assert stored(paths, do(NAME)) == DATA
    assert do.announced[-1].here > 1_500_000


def broken_off(hub: Hub, do: Pulls) -> None:
    """A pull that ends when some two thirds have come."""

    def pause(start: int, pos: int) -> float:
        if hub.bytes > 2_000_000:
            hub.faults.files = [(403, {"X-Error-Message": "enough"})] * 1000
        return 0.0

    hub.faults.pause = pause
    with pytest.raises(EdgeError):
        do(NAME)
    hub.faults.pause, hub.faults.files = None, []


def test_a_part_that_the_disk_lost_is_fetched_again(hub: Hub, do: Pulls, paths: Paths) -> None:
    broken_off(hub, do)
    (part,) = paths.models.glob("partial/*/0.part")
    with part.open("r+b") as file:
        file.seek(500_000)
        file.write(bytes(100_000))
    assert stored(paths, do(NAME)) == DATA
    assert "second copy" not in do.details  # the table knew which


# Together


def test_two_pulls_share_the_work(hub: Hub, paths: Paths) -> None:
    hub.faults.pause = lambda start, pos: 0.004
    pulls = [Pulls(paths), Pulls(paths), Pulls(paths)]
    results: list[PullResult] = []
    names = (None, None, "other")
    threads = [
        threading.Thread(target=lambda each=each, name=name: results.append(each(NAME, name)))
        for each, name in zip(pulls, names, strict=True)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted((str(each.manifest.full_name), each.already) for each in results) == [
        ("my-model:q4_k_m", False),
        ("my-model:q4_k_m", True),
        ("other:latest", False),
    ]
    assert hub.bytes < len(DATA) + SLACK
    followed = [report for each in pulls for report in each.reports if "elsewhere" in report.detail and report.done]
    assert followed
    assert len(list((paths.models / "blobs").iterdir())) == 1


# What a repository holds


def test_not_a_model(hub: Hub, do: Pulls, paths: Paths) -> None:
    hub.add(REPO, {FILE: b"<!doctype html>" + bytes(2_000_000)})
    with pytest.raises(BadModelFile):
        do(NAME)
    hub.add(REPO, {FILE: model(2_000_000, "x", key("general.type", STRING, "adapter"))})
    with pytest.raises(BadModelFile, match="adapter"):
        do(NAME)
    assert len(hub.sent) <= 4  # seen at its header, not after the download
    assert nothing_published(paths)


def test_a_taken_name_is_refused_before_any_byte(hub: Hub, do: Pulls, tmp_path: Path) -> None:
    other = tmp_path / "other.gguf"
    other.write_bytes(model(1000, "Other"))
    do(str(other), "my-model:q4_k_m")
    with pytest.raises(InvalidRequest, match="taken by another model"):
        do(NAME)
    assert hub.sent == []
