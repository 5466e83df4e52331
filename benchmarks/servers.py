"""Starts the servers that are compared, each in a process of its own, on the same model file and threads."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import psutil

CONTEXT = 32768  # KV tokens over all requests, the same for every server


class Server(NamedTuple):
    name: str
    url: str
    model: str
    pid: int

    def pss(self) -> int:
        """Proportional memory of the server and its children, bytes."""
        process = psutil.Process(self.pid)
        return sum(p.memory_full_info().pss for p in [process, *process.children(recursive=True)])


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def wait_until_ready(url: str, process: subprocess.Popen[bytes], seconds: float = 120) -> None:
    deadline = time.monotonic() + seconds
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise RuntimeError(f"the server for {url} ended with {process.returncode}")
        with contextlib.suppress(OSError, json.JSONDecodeError):
            if json.load(opener.open(url + "/health", timeout=2))["status"] == "ok":
                return
        time.sleep(0.1)
    raise RuntimeError(f"{url} did not become ready")


@contextlib.contextmanager
def _running(name: str, command: list[str], environment: dict[str, str], port: int, model: str) -> Iterator[Server]:
    with tempfile.NamedTemporaryFile(prefix=f"{name}-", suffix=".log") as log:
        process = subprocess.Popen(command, env={**os.environ, **environment}, stdout=log, stderr=log)
        url = f"http://127.0.0.1:{port}"
        try:
            wait_until_ready(url, process)
            yield Server(name, url, model, process.pid)
        except Exception:
            sys.stderr.write(Path(log.name).read_text(errors="replace")[-3000:])
            raise
        finally:
            process.terminate()
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()


@contextlib.contextmanager
def edgellm(model: Path, threads: int, settings: dict[str, str]) -> Iterator[Server]:
    """`edgellm serve` with a store of its own that holds just this model."""
    with tempfile.TemporaryDirectory() as home:
        environment = {
            "EDGELLM_HOME": home,
            "EDGELLM_THREADS": str(threads),
            "EDGELLM_CAPACITY": str(CONTEXT),
            **settings,
        }
        program = [sys.executable, "-m", "edgellm.cli.main"]
        subprocess.run(
            [*program, "pull", str(model), "--name", "bench"],
            env={**os.environ, **environment},
            check=True,
            capture_output=True,
        )
        port = free_port()
        with _running("edgellm", [*program, "serve", "--port", str(port)], environment, port, "bench") as server:
            yield server


@contextlib.contextmanager
def llama_server(model: Path, threads: int, settings: dict[str, str]) -> Iterator[Server]:
    """llama-server, from the wheel `xllamacpp`: 8 slots; `batch` and `draft` in settings."""
    port = free_port()
    command = [sys.executable, __file__, str(model), str(port), str(threads), json.dumps(settings)]
    with _running("llama-server", command, {}, port, "bench") as server:
        yield server


def _serve_llama(model: str, port: str, threads: str, settings: dict[str, str]) -> None:
    import xllamacpp

    params = xllamacpp.CommonParams()
    params.model.path, params.port = model, int(port)
    params.n_ctx, params.n_parallel = CONTEXT, 8
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = int(threads)
    if "batch" in settings:
        params.n_batch = int(settings["batch"])
    if settings.get("draft") == "ngram":
        params.speculative.types = [xllamacpp.common_speculative_type.COMMON_SPECULATIVE_TYPE_NGRAM_SIMPLE]
    server = xllamacpp.Server(params)
    while server:
        time.sleep(3600)


if __name__ == "__main__":
    _serve_llama(sys.argv[1], sys.argv[2], sys.argv[3], json.loads(sys.argv[4]))
