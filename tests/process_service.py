"""The real service, pool and supervision over HTTP, around worker processes without a model (`fake_worker.py`)."""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
import time
from collections.abc import AsyncGenerator, Callable, Iterator
from pathlib import Path
from typing import Any

import httpx2
import msgspec
from cli_fakes import put
from fake_service import Server, serving
from gguf_files import tiny

from edgellm.config import Settings
from edgellm.contracts.engine import Placement
from edgellm.contracts.events import Event
from edgellm.contracts.request import GenerateRequest
from edgellm.engine.admission import ModelPlan
from edgellm.engine.limits import Limits as Queue
from edgellm.engine.patience import Supervision
from edgellm.engine.protocol import Load
from edgellm.engine.supervisor import LocalModel
from edgellm.library.manifest import Manifest
from edgellm.paths import default_paths
from edgellm.placement.machine import Memory
from edgellm.server.body import Limits
from edgellm.service import Service

FAKE = Path(__file__).parent / "fake_worker.py"
CORE = Path(__file__).parent / "core_worker.py"
MODEL = "fake:latest"
PATIENCE = Supervision(deaths=1000, backoff_s=0.05, backoff_limit_s=0.05)
REAL_SILENCE_S = 30.0  # importing torch lets no other thread run for a second, on a busy machine for several
PLACE = Placement(context=512, capacity=1024, max_sequences=8, batch_tokens=64, threads=1, threads_batch=1)


class ProcessService(Service):
    """What a prompt says is what the worker does: "echo a b", "slow 50", "die-decode", … (`fake_worker.Fake.begin`)."""

    def __init__(self, settings: Settings, options: dict[str, Any], patience: Supervision) -> None:
        super().__init__(settings, default_paths())
        self._options = options
        self._patience = patience
        self.loop: asyncio.AbstractEventLoop | None = None

    async def generate(self, request: GenerateRequest) -> AsyncGenerator[Event, None]:
        self.loop = asyncio.get_running_loop()
        async with contextlib.aclosing(super().generate(request)) as events:
            async for event in events:
                yield event

    def _plan(self, manifest: Manifest, memory: Memory) -> ModelPlan:
        queue = Queue(queue_requests=self._settings.queue_requests, max_running=PLACE.max_sequences)
        if "torch" in self._options:
            return ModelPlan(Load("torch", self._options["torch"], PLACE, str(manifest.full_name), queue), 1)
        path = self._paths.data / "tiny.gguf"
        path.write_bytes(tiny())
        return ModelPlan(Load("fake", str(path), PLACE, str(manifest.full_name), queue), 1)

    def _make_model(self, load: Load) -> LocalModel:
        argv = [sys.executable, "-P", str(FAKE), json.dumps(self._options)]
        if "core" in self._options:
            argv = [sys.executable, str(CORE), str(self._options["core"])]
        elif "torch" in self._options:
            argv = [sys.executable, str(CORE), "torch"]
        if gate := self._options.get("gate"):
            argv = ["sh", "-c", 'until [ -e "$0" ]; do sleep 0.02; done; exec "$@"', str(gate), *argv]
        log = self._paths.worker_log(load.model)
        return LocalModel(load, supervision=self._patience, log_path=log, argv=argv)


class Processes:
    """A server around such a service, and what can be asked of it."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self.http = httpx2.Client(base_url=server.url, trust_env=False, timeout=120)

    def ask(self, prompt: str, **fields: Any) -> httpx2.Response:
        return self.http.post("/v1/completions", json=self.body(prompt) | fields)

    def body(self, prompt: str) -> dict[str, Any]:
        return {"model": "fake", "prompt": prompt, "max_tokens": 100}

    def health(self) -> dict[str, Any]:
        found: dict[str, Any] = self.http.get("/health").json()
        return found

    @property
    def model(self) -> dict[str, Any]:
        found: dict[str, Any] = self.http.get("/edgellm/v1/ps").json()["models"][0]
        return found

    def metric(self, name: str) -> float:
        """The sum over all labels."""
        lines = self.http.get("/metrics").text.splitlines()
        return sum(float(line.split()[-1]) for line in lines if line.startswith((name + "{", name + " ")))


@contextlib.contextmanager
def processes(
    settings: Settings | None = None, limits: Limits | None = None, silence_s: float | None = None, **options: Any
) -> Iterator[Processes]:
    """A running server. `options` are the fake worker's; or `core`: seconds per step of the real one's (`core_worker`);
    or `torch`: the model that the real worker runs on that engine. `gate`: a file without which no worker starts.

    `silence_s`: how long a worker may be silent. EDGELLM_HOME must be the test's own.
    """
    put("fake")
    if silence_s is None:
        silence_s = REAL_SILENCE_S if {"core", "torch"} & options.keys() else PATIENCE.heartbeat_timeout_s
    patience = msgspec.structs.replace(PATIENCE, heartbeat_timeout_s=silence_s)
    service = ProcessService(settings or Settings(), options, patience)
    with serving(service, settings, limits) as server:
        found = Processes(server)
        try:
            yield found
        finally:
            found.http.close()
            if service.loop is not None:
                asyncio.run_coroutine_threadsafe(service.aclose(0.0), service.loop).result(60)


def until(condition: Callable[[], Any], seconds: float = 60.0) -> float:
    """Wait until it holds; how long that took."""
    began = time.monotonic()
    while not condition():
        assert time.monotonic() - began < seconds
        time.sleep(0.01)
    return time.monotonic() - began
