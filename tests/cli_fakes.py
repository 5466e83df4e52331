"""A made-up daemon and made-up models for the tests of the command line."""

from __future__ import annotations

import io
import sys
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import Any

import pytest

from edgellm import __version__
from edgellm.contracts.events import (
    ChoiceDone,
    Event,
    Failed,
    Finished,
    Progress,
    Started,
    TextDelta,
    Timings,
    Usage,
)
from edgellm.contracts.request import GenerateRequest, Sampling
from edgellm.contracts.status import LoadedModel
from edgellm.formats.summary import ModelSummary
from edgellm.library.manifest import MODEL_ROLE, Manifest, StoredFile
from edgellm.library.names import parse_name
from edgellm.library.store import Store
from edgellm.paths import default_paths

Streams = pytest.CaptureFixture[str]
USAGE = Usage(31, 96, 8)
TIMINGS = Timings(0.01, 0.15, 0.95, 1.11)
ANSWER: tuple[Event, ...] = (
    Progress("load", 0.5),
    Started(31, 8, 7),
    TextDelta("Because sunlight "),
    TextDelta("scatters.\n"),
    ChoiceDone("stop"),
    Finished(USAGE, TIMINGS),
)


def put(name: str, *, chat: bool = True, content: bytes | None = None) -> Manifest:
    """Publish a made-up model in the store of this test's home."""
    import hashlib

    paths = default_paths()
    content = content or name.encode()
    digest = f"sha256:{hashlib.sha256(content).hexdigest()}"
    staged = paths.data / "staged"
    staged.parent.mkdir(parents=True, exist_ok=True)
    staged.write_bytes(content)
    full = parse_name(name)
    manifest = Manifest(
        name=full.name,
        tag=full.tag,
        files=(StoredFile(MODEL_ROLE, digest, len(content), "file:/somewhere"),),
        licence="Apache-2.0",
        created=datetime.now(UTC),
        summary=ModelSummary("Title", "llama", 135_000_000, "Q4_1", 8192, 30, chat),
        sampling=Sampling(temperature=0.2, top_p=0.9),
        title="A Model \x1b[2J",
    )
    Store(paths).publish(manifest, {digest: staged})
    return manifest


class FakeClient:
    """Stands for the daemon: answers from `script`, remembers what it was asked."""

    def __init__(self, script: tuple[Event | BaseException, ...] = ANSWER) -> None:
        self.script = script
        self.requests: list[GenerateRequest] = []
        self.cancelled = 0
        self.models: list[LoadedModel] = []
        self.stopped: list[str] = []
        self.started: tuple[Any, ...] = ()
        self.running = True
        self.version = __version__
        self.replaceable = False
        self.settings: dict[str, str] = {}

    def find(self, paths: object, *, any_version: bool = False, patience_s: float = 0.0) -> FakeClient | None:
        return self if self.running else None

    def connect_or_start(self, paths: object, settings: object, preload: str | None = None) -> FakeClient:
        self.started = (settings, preload)
        return self

    def generate(self, request: GenerateRequest) -> Iterator[Event]:
        self.requests.append(request)
        done = False
        try:
            for step in self.script:
                if isinstance(step, BaseException):
                    raise step
                done = isinstance(step, Finished | Failed)
                yield step
        finally:
            self.cancelled += not done

    def ps(self) -> list[LoadedModel]:
        return self.models

    def stop(self, name: str) -> bool:
        self.stopped.append(name)
        return name in [model.name for model in self.models]

    def shutdown(self) -> bool:
        self.running = False
        return True

    def make_way(self, wait_s: float = 0.0) -> bool:
        self.running = not self.replaceable
        return self.replaceable

    @property
    def info(self) -> Any:
        from edgellm.client import DaemonInfo

        return DaemonInfo("http://127.0.0.1:1", 123, self.version, "token", self.settings)

    def close(self) -> None: ...

    def __enter__(self) -> FakeClient:
        return self

    def __exit__(self, *exc: object) -> None: ...


def loaded(name: str, context: int = 2048, engine: str = "") -> LoadedModel:
    return LoadedModel(
        name=name,
        state="ready",
        size=1 << 29,
        context=context,
        capacity=4096,
        kv_used=1024,
        running=0,
        waiting=0,
        last_used=0.0,
        expires_at=time.time() + 250,
        pid=5,
        engine=engine,
    )


def pipe(monkeypatch: pytest.MonkeyPatch, data: bytes) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(data)))


def at_terminal(monkeypatch: pytest.MonkeyPatch, *modules: Any) -> None:
    for module in modules:
        monkeypatch.setattr(module, "is_terminal", lambda stream: True)


def explode(error: BaseException) -> Callable[..., None]:
    def raise_it(*args: object, **kwargs: object) -> None:
        raise error

    return raise_it
