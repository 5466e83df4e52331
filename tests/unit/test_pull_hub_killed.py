"""A pull from a hub that is killed at any point, or runs out of disk: the next one ends in the right bytes."""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import sys
import time
from pathlib import Path

import msgspec
import pytest
from hub_pulls import FAST, Pulls, nothing_published, stored
from hub_server import model, serving

from edgellm.errors import DiskFull
from edgellm.library.jobs import partials
from edgellm.library.store import Store
from edgellm.paths import default_paths

DATA = model(6_000_000, "Killed")
TUNING = msgspec.structs.replace(FAST, stall_s=5.0, patience_s=30.0)


CHILD = """
import sys, msgspec
from hub_pulls import FAST
from edgellm.library.pull import pull
from edgellm.paths import default_paths

tuning = msgspec.structs.replace(FAST, stall_s=5.0, patience_s=30.0)
pull("hf:org/repo:Q4_0", paths=default_paths(), report=lambda progress: None, tuning=tuning)
"""


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_killed_at_twenty_random_points(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    paths, store, dice = default_paths(), Store(default_paths()), random.Random(20)
    half_way = at_the_end = 0
    with serving() as hub:
        hub.add("org/repo", {"M-Q4_0.gguf": DATA})
        monkeypatch.setenv("HF_ENDPOINT", hub.hub.url)
        monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, sys.path)))
        for round_ in range(20):
            missing = len(DATA) - sum(each.done for each in partials(paths))
            late = round_ % 4 == 3  # around the last byte, the check and the publication
            begun, goal = hub.bytes, missing if late else int(dice.uniform(0, 0.5) * missing)
            # From the goal on the hub hardly goes on, so that the pull is still there when it is killed.
            hub.faults.pause = lambda start, pos, last=begun + goal: 0.002 if hub.bytes < last else 0.05
            with subprocess.Popen([sys.executable, "-c", CHILD]) as process:
                while process.poll() is None and hub.bytes - begun < goal:
                    time.sleep(0.001)
                time.sleep(dice.uniform(0, 0.15))
                process.kill()
            half_way += any(0 < each.done < each.total for each in partials(paths))
            at_the_end += late
            assert store.scan().damaged == []
            assert all(blob.read_bytes() == DATA for blob in paths.models.glob("blobs/*"))  # whole, or not there
            for manifest in store.list():
                assert store.model_path(manifest).read_bytes() == DATA
                store.remove(manifest.full_name)
        hub.faults.pause, before = None, hub.bytes
        result = Pulls(paths, TUNING)("hf:org/repo:Q4_0")
        assert hub.bytes - before <= len(DATA) + (1 << 20)
    assert (half_way >= 8, at_the_end) == (True, 5)
    assert stored(paths, result) == DATA
    assert not list(paths.models.glob("partial/*/"))


@pytest.fixture
def small_disk(tmp_path: Path) -> Path:
    """A disk of 72 MiB, of which the store leaves 64 alone."""
    place = tmp_path / "disk"
    place.mkdir()
    mount = shutil.which("mount")
    made = subprocess.run(
        [mount or "false", "-t", "tmpfs", "-o", "size=72m", "tmpfs", str(place)], capture_output=True, check=False
    )
    if made.returncode:
        pytest.skip("no right to mount a small disk here")
    return place


@pytest.mark.slow
def test_a_real_disk_that_fills_up(small_disk: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EDGELLM_HOME", str(small_disk))
    monkeypatch.setattr("edgellm.library.staging.SPARE", 0)
    paths = default_paths()
    do = Pulls(paths)
    try:
        with serving() as hub:
            monkeypatch.setenv("HF_ENDPOINT", hub.hub.url)
            hub.add("org/repo", {"M-Q4_0.gguf": DATA})
            ballast = small_disk / "ballast"

            def pause(start: int, pos: int) -> float:
                if not ballast.exists() and hub.bytes > 2_000_000:
                    room = shutil.disk_usage(small_disk).free
                    ballast.write_bytes(bytes(room - 200_000))  # another program fills the disk meanwhile
                return 0.0

            hub.faults.pause = pause
            with pytest.raises(DiskFull, match="No space left") as caught:
                do("hf:org/repo:Q4_0")
            assert caught.value.hint
            assert nothing_published(paths)
            (left,) = partials(paths)
            assert left.done > 1_500_000
            with pytest.raises(DiskFull, match="needs"):  # now before any byte
                do("hf:org/repo:Q4_0")
            ballast.unlink()
            hub.faults.pause = None
            assert stored(paths, do("hf:org/repo:Q4_0")) == DATA
            assert do.announced[-1].here >= left.done
    finally:
        subprocess.run(["umount", "-l", str(small_disk)], check=False)
