"""What differs between operating systems, on the one at hand."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from edgellm import platform

posix = pytest.mark.skipif(os.name != "posix", reason="POSIX file modes")


def mode(path: Path) -> int:
    return path.stat().st_mode & 0o777


def soon(condition: Callable[[], bool]) -> bool:
    deadline = time.monotonic() + 60.0
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.01)
    return condition()


@posix
def test_private_files(tmp_path: Path) -> None:
    folder = tmp_path / "a" / "b"
    platform.make_private_folder(folder)
    platform.make_private_folder(folder)
    assert mode(folder) == 0o700
    file = folder / "daemon.json"
    file.write_bytes(b"old")
    file.chmod(0o644)
    platform.write_private(file, b"new")
    assert (file.read_bytes(), mode(file)) == (b"new", 0o600)
    assert list(folder.iterdir()) == [file]  # no temporary file left


def test_a_failed_write_leaves_the_old_file(tmp_path: Path) -> None:
    file = tmp_path / "f"
    file.write_bytes(b"old")
    with pytest.raises(TypeError):
        platform.write_private(file, "no bytes")  # type: ignore[arg-type]
    assert file.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [file]


def test_a_detached_process_outlives_its_parent(tmp_path: Path) -> None:
    log = tmp_path / "logs" / "daemon.log"
    child = "import os, time; print('home', os.environ['EDGELLM_HOME'], flush=True); time.sleep(60)"
    parent = (
        "import sys; from pathlib import Path; from edgellm import platform\n"
        f"print(platform.spawn_detached([sys.executable, '-c', {child!r}], Path({str(log)!r})))"
    )
    environment = {**os.environ, "EDGELLM_HOME": "somewhere"}
    done = subprocess.run(
        [sys.executable, "-c", parent],
        capture_output=True,
        text=True,
        env=environment,
        cwd=tmp_path,
        check=True,
    )
    assert done.stderr == ""
    pid = int(done.stdout)
    try:
        assert soon(lambda: log.exists() and log.stat().st_size > 0)
        assert platform.pid_alive(pid)
        # It does not run where its parent did; a relative home is the same folder all the same.
        assert log.read_text().strip() == f"home {tmp_path / 'somewhere'}"
        if os.name == "posix":
            assert mode(log) == 0o600
            assert os.getsid(pid) == pid
    finally:
        os.kill(pid, signal.SIGTERM)
    assert soon(lambda: not platform.pid_alive(pid))


def test_a_detached_process_that_ends_first_is_reaped(tmp_path: Path) -> None:
    pid = platform.spawn_detached([sys.executable, "-c", "pass"], tmp_path / "log")
    assert soon(lambda: not platform.pid_alive(pid))
    with pytest.raises(OSError):
        platform.spawn_detached([str(tmp_path / "missing")], tmp_path / "log")


def test_pids_that_are_none() -> None:
    assert platform.pid_alive(os.getpid())
    for pid in (0, -1, 2**22 + 1):
        assert not platform.pid_alive(pid)


def test_how_a_process_ended() -> None:
    assert platform.death_of(1) == "exit code 1"
    if os.name == "posix":
        assert platform.death_of(-9) == "killed by SIGKILL"
        assert platform.death_of(-120) == "killed by signal 120"


def test_who_was_killed_for_want_of_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    counts = tmp_path / "vmstat"
    monkeypatch.setattr(platform, "_VMSTAT", counts)
    assert platform.memory_kills() == 0  # of which not every system tells
    counts.write_text("allocstall_normal 7\noom_kill 12\noom_kill_other 9\n")
    assert platform.memory_kills() == 12
    if os.name == "posix":
        assert platform.killed_for_memory(-9, 11)
        assert not platform.killed_for_memory(-9, 12)
    assert not platform.killed_for_memory(-11, 11)
    assert not platform.killed_for_memory(None, 11)
