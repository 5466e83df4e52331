"""A service that answers by script, and a real server around it on a real port."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
import threading
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from edgellm.config import Settings
from edgellm.contracts.embedding import EmbedRequest
from edgellm.contracts.events import (
    ChoiceDone,
    Embedded,
    Event,
    Failed,
    Finished,
    FinishReason,
    Progress,
    Started,
    TextDelta,
    Timings,
    Usage,
)
from edgellm.contracts.request import GenerateRequest
from edgellm.contracts.status import Health, LoadedModel
from edgellm.errors import NotFound
from edgellm.library.names import parse_name
from edgellm.server.body import Limits
from edgellm.service import ModelCard, Service, ServiceHealth

if TYPE_CHECKING:
    from edgellm.server.protocol import DeadlineProtocol

CARD = ModelCard("fake:latest", 1_700_000_000, 94 << 20, 135_000_000, "Q4_1", 8192, "fp_0123456789ab")
LOADED = LoadedModel(
    name=CARD.name, state="ready", size=200 << 20, context=8192, capacity=8192, kv_used=10, running=2, waiting=1,
    last_used=1_700_000_000.0, expires_at=None, pid=None, restarts=3,
)  # fmt: skip
TOKEN = "boot-token"
Step = Event | float | Callable[[], Awaitable[None]]  # emit, sleep, or wait for something


def finish(text: str, reason: FinishReason = "stop", *, prompt: int = 7, cached: int = 3) -> list[Event]:
    """The end of an answer."""
    return [
        TextDelta(text),
        ChoiceDone(reason),
        Finished(
            Usage(prompt, 5, cached),
            Timings(queue_s=0.01, prefill_s=0.1, decode_s=0.4, total_s=0.51, drafted=4, accepted=3),
        ),
    ]


HELLO: tuple[Step, ...] = (Progress("load", 0.5), Started(7, 3, 42), TextDelta("Hel"), *finish("lo"))


class FakeService(Service):
    """Plays `script` for every request; remembers requests, and when their events were closed early."""

    def __init__(self, script: Sequence[Step] = HELLO) -> None:
        self.script: Sequence[Step] = script
        self.requests: list[GenerateRequest] = []
        self.embeddings: list[EmbedRequest] = []
        self.closed: list[float] = []  # monotonic
        self.entered = threading.Event()
        self.over = asyncio.Event()
        self.stopped: list[str] = []
        self.preloaded: list[str] = []
        self.state = ServiceHealth("ok", {"fake:latest": Health("ready")})

    def model(self, name: str) -> ModelCard:
        if str(parse_name(name)) != CARD.name:
            raise NotFound(f"no model named {name}", hint="did you mean fake?", param="model")
        return CARD

    def models(self) -> list[ModelCard]:
        return [CARD]

    async def generate(self, request: GenerateRequest) -> AsyncGenerator[Event, None]:
        self.requests.append(request)
        self.entered.set()
        whole = False
        try:
            for step in self.script:
                if isinstance(step, int | float):
                    await asyncio.sleep(step)
                elif callable(step):
                    await step()
                else:
                    whole = isinstance(step, Finished | Failed)
                    yield step
        finally:
            if not whole:
                self.closed.append(time.monotonic())

    async def embed(self, request: EmbedRequest) -> AsyncGenerator[Event, None]:
        """Every vector is (0.6, 0.8, 0), every text has three tokens."""
        self.embeddings.append(request)
        yield Embedded(struct.pack("<3f", 0.6, 0.8, 0.0) * len(request.inputs), 3)
        yield Finished(Usage(3 * len(request.inputs), 0), Timings(0.01, 0.1, 0.0, 0.11))

    def loaded(self) -> list[LoadedModel]:
        return [LOADED]

    async def stop(self, name: str) -> bool:
        parse_name(name)
        self.stopped.append(name)
        return True

    async def preload(self, name: str) -> None:
        self.preloaded.append(name)

    async def aclose(self, grace_s: float = 0.0) -> None:
        self.over.set()

    def health(self) -> ServiceHealth:
        return self.state


class Server:
    """The real application under a real uvicorn in a thread of its own."""

    def __init__(self, service: Service, settings: Settings, limits: Limits, key_file: Path | None = None) -> None:
        from edgellm.server.app import build_app
        from edgellm.server.security import Security
        from edgellm.server.web import web_server

        self.shutdowns = 0
        self.socket = socket.create_server(("127.0.0.1", 0))
        self.port: int = self.socket.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self.app = build_app(service, Security.of(settings, TOKEN, key_file), limits=limits, shutdown=self._count)
        self._server = web_server(self.app, limits)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()), daemon=True)

    async def _serve(self) -> None:
        self._loop = asyncio.get_running_loop()
        await self._server.serve([self.socket])

    def loop(self) -> asyncio.AbstractEventLoop:
        assert self._loop is not None
        return self._loop

    def connections(self) -> list[DeadlineProtocol]:
        """Those that are open now."""
        from edgellm.server.protocol import DeadlineProtocol

        return [each for each in list(self._server.server_state.connections) if isinstance(each, DeadlineProtocol)]

    def _count(self) -> None:
        self.shutdowns += 1

    def start(self) -> None:
        self._thread.start()
        deadline = time.monotonic() + 60
        while not self._server.started and time.monotonic() < deadline:
            time.sleep(0.005)

    def stop(self) -> None:
        self._server.should_exit = True
        self._thread.join(60)
        assert not self._thread.is_alive()


@contextlib.contextmanager
def serving(
    service: Service, settings: Settings | None = None, limits: Limits | None = None, key_file: Path | None = None
) -> Iterator[Server]:
    """A server around `service` while the block runs."""
    server = Server(service, settings or Settings(), limits or Limits(), key_file)
    server.start()
    try:
        yield server
    finally:
        server.stop()


def quick(limits: Limits | None = None, **changes: float) -> Limits:
    """Limits with some of them shortened."""
    return msgspec.structs.replace(limits or Limits(), **changes)
