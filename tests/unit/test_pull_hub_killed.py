"""A pull from a hub that is killed at any point, or runs out of disk: the next one ends in the right bytes."""

from __future__ import annotations

import multiprocessing
import os
import random
import shutil
import subprocess
import time
from pathlib import Path

import msgspec
import pytest
from hub_pulls import FAST, Pulls, nothing_published, stored
from hub_server import model, serving

from edgellm.errors import DiskFull
from edgellm.library.jobs import partials
from edgellm.library.pull import pull
from edgellm.library.store import Store
from edgellm.paths import default_paths

DATA = model(6_000_000, "Killed")
TUNING = msgspec.structs.replace(FAST, stall_s=5.0, patience_s=30.0)


def pulling(home: str, endpoint: str) -> None:
    """What a process does that may be killed. Its environment is that of the server it was forked from."""
    os.environ |= {"EDGELLM_HOME": home, "HF_ENDPOINT": endpoint}
    pull("hf:org/repo:Q4_0", paths=default_paths(), report=lambda progress: None, tuning=TUNING)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_killed_at_twenty_random_points(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    processes = multiprocessing.get_context("forkserver")  # forks from one that has imported everything: no start-up
    processes.set_forkserver_preload(["edgellm.library.pull", "huggingface_hub.hf_api", "httpx2"])
    paths, store, dice = default_paths(), Store(default_paths()), random.Random(20)
    half_way = at_the_end = 0
    with serving() as hub:
        hub.add("org/repo", {"M-Q4_0.gguf": DATA})
        hub.faults.pause = lambda start, pos: 0.002
        for round_ in range(20):
            process = processes.Process(target=pulling, args=(str(home), hub.hub.url))
            process.start()
            missing = len(DATA) - sum(each.done for each in partials(paths))
            late = round_ % 4 == 3  # around the last byte, the check and the publication
            begun, goal = hub.bytes, missing if late else int(dice.uniform(0, 0.5) * missing)
            while process.is_alive() and hub.bytes - begun < goal:
                time.sleep(0.001)
            time.sleep(dice.uniform(0, 0.15))
            process.kill()
            process.join()
            half_way += any(0 < each.done < each.total for each in partials(paths))
            at_the_end += late
            assert store.scan().damaged == []
            assert all(blob.read_bytes() == DATA for blob in paths.models.glob("blobs/*"))  # whole, or not there
            for manifest in store.list():
                assert store.model_path(manifest).read_bytes() == DATA
                store.remove(manifest.full_name)
        hub.faults.pause, before = None, hub.bytes
        monkeypatch.setenv("HF_ENDPOINT", hub.hub.url)
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
