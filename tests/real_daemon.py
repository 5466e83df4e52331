"""A real daemon in a process of its own, with a real model, for end-to-end tests."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from edgellm.client import DaemonClient
from edgellm.contracts.events import Event
from edgellm.contracts.request import GenerateRequest, Prompt, Sampling
from edgellm.contracts.status import LoadedModel
from edgellm.library.pull import pull
from edgellm.paths import Paths, default_paths

MODEL = "smollm2:135m"
ENDLESS = Sampling(frequency_penalty=-2.0)  # what was said becomes likelier: the model never ends its answer itself


def home_with_model(file: Path, root: Path, patch: pytest.MonkeyPatch) -> Paths:
    """Make `root` the home, with `file` in its store as MODEL, and the settings that every such test wants."""
    patch.setenv("EDGELLM_HOME", str(root))
    patch.setenv("EDGELLM_PORT", "0")
    patch.setenv("EDGELLM_THREADS", "1")  # two would wait for each other on a busy machine
    patch.setenv("EDGELLM_MEMORY_RESERVE", "0")
    paths = default_paths()
    manifest = pull(str(file), name=MODEL, paths=paths, report=lambda _: None).manifest
    blob = paths.models / "blobs" / manifest.model.digest.replace(":", "-")
    blob.unlink()
    blob.symlink_to(file)  # pytest keeps old folders: 94 MiB each would add up
    return paths


class Served:
    """`edgellm serve` as a child, and a client of it."""

    def __init__(self, process: subprocess.Popen[bytes], client: DaemonClient) -> None:
        self.process = process
        self.client = client

    @property
    def model(self) -> LoadedModel:
        return self.client.ps()[0]

    @property
    def worker(self) -> int:
        pid = self.model.pid
        assert pid is not None
        return pid

    def generate(self, prompt: Prompt, max_tokens: int) -> Iterator[Event]:
        """An answer that ends at `max_tokens`, not where the model likes: what is done meanwhile finds it running."""
        request = GenerateRequest(id="", model=MODEL, prompt=prompt, sampling=ENDLESS, max_tokens=max_tokens)
        return self.client.generate(request)


@contextmanager
def serving(paths: Paths) -> Iterator[Served]:
    """A daemon that is ready; killed at the end if it is still there, and its worker with it."""
    process = subprocess.Popen([sys.executable, "-m", "edgellm.cli.main", "serve"], stderr=subprocess.DEVNULL)
    try:
        wait_for(lambda: (paths.runtime / "daemon.json").exists() or process.poll() is not None, 60)
        client = DaemonClient.find(paths)
        assert client is not None
        with client:
            yield Served(process, client)
    finally:
        process.kill()
        process.wait()


class Watch(threading.Thread):
    """What /health says of the daemon and of MODEL, asked again and again: a restart may be over in half a second."""

    def __init__(self, client: DaemonClient) -> None:
        super().__init__(daemon=True)
        self.said: set[tuple[str, str]] = set()
        self._client = client
        self._over = threading.Event()

    @property
    def restarting(self) -> bool:
        said = set(self.said)
        return any(status in ("degraded", "loading") and state in ("restarting", "loading") for status, state in said)

    def run(self) -> None:
        while not self._over.wait(0.01):
            health = self._client.health()
            self.said.add((health["status"], health["models"][MODEL]["state"]))

    def __enter__(self) -> Watch:
        self.start()
        wait_for(lambda: self.said, 60)
        return self

    def __exit__(self, *exc: object) -> None:
        self._over.set()
        self.join()


def wait_for(condition: Callable[[], Any], seconds: float) -> float:
    """Wait until it holds; how long that took."""
    began = time.monotonic()
    while not condition():
        assert time.monotonic() - began < seconds
        time.sleep(0.01)
    return time.monotonic() - began
