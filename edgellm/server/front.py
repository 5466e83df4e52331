"""Front: what every dialect goes through on its way to the service. Draining, activity, metrics."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator
from contextlib import aclosing

from edgellm.contracts.embedding import EmbedRequest
from edgellm.contracts.events import Event
from edgellm.contracts.request import GenerateRequest
from edgellm.errors import Unavailable
from edgellm.server.metrics import Metrics
from edgellm.service import ModelCard, Service

JUST_S = 0.5  # who has started a daemon, or read an answer, gets a moment to ask


class Front:
    """The service as HTTP sees it. Used from one event loop."""

    def __init__(self, service: Service, *, replaceable: bool = False) -> None:
        """`replaceable`: the daemon runs in the background and may leave when another wants its place."""
        self.service = service
        self._replaceable = replaceable
        self.metrics = Metrics(service.loaded)
        self.running = 0  # answers under way
        self.draining = False
        self._last = self._answered = time.monotonic()
        self._none_running = asyncio.Event()
        self._none_running.set()

    @property
    def idle_s(self) -> float:
        """Seconds since anybody last wanted something; 0 while an answer is under way."""
        return 0.0 if self.running else time.monotonic() - self._last

    async def may_leave(self) -> bool:
        """Whether another daemon may take this one's place: no answer is under way, nor asked for in that moment."""
        if not self._replaceable or self.running:
            return False
        answered = self._answered
        await asyncio.sleep(max(0.0, answered + JUST_S - time.monotonic()))
        return not self.running and self._answered == answered

    def touch(self) -> None:
        """Somebody wanted something."""
        self._last = time.monotonic()

    def model(self, name: str) -> ModelCard:
        """The model a request means. Raises Unavailable while draining, InvalidName, NotFound."""
        if self.draining:
            raise Unavailable("the daemon is stopping", hint="send the request again in a moment", retry_after=1.0)
        return self.service.model(name)

    def generate(self, request: GenerateRequest, model: ModelCard) -> AsyncGenerator[Event, None]:
        """The events of an accepted request, counted. Closing cancels it."""
        return self._counted(self.service.generate(request), model)

    def embed(self, request: EmbedRequest, model: ModelCard) -> AsyncGenerator[Event, None]:
        """The same, for embeddings."""
        return self._counted(self.service.embed(request), model)

    async def _counted(self, answer: AsyncGenerator[Event, None], model: ModelCard) -> AsyncGenerator[Event, None]:
        follower = self.metrics.follow(model.name)
        self.running += 1
        self._none_running.clear()
        try:
            async with aclosing(answer) as events:
                async for event in events:
                    follower.see(event)
                    yield event
        finally:
            follower.close()
            self._last = self._answered = time.monotonic()
            self.running -= 1
            if not self.running:
                self._none_running.set()

    async def drain(self, grace_s: float) -> bool:
        """Refuse what comes, let what runs finish within `grace_s`. False when some did not."""
        self.draining = True
        try:
            async with asyncio.timeout(grace_s):
                await self._none_running.wait()
        except TimeoutError:
            return False
        return True
