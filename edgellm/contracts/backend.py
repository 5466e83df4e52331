"""ChatBackend: anything that turns a request into events, wherever the answer comes from."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Literal, Protocol

import msgspec

from edgellm.contracts.events import Event
from edgellm.contracts.request import GenerateRequest

State = Literal["stopped", "loading", "ready", "restarting", "failed", "draining"]


class Health(msgspec.Struct, frozen=True):
    """What a backend says of itself now."""

    state: State
    running: int = 0  # requests being computed
    waiting: int = 0  # requests accepted and not yet started
    detail: str | None = None  # why, when not ready


class ChatBackend(Protocol):
    def generate(self, request: GenerateRequest) -> AsyncIterator[Event]:
        """Stream the answer. Closing the iterator cancels the request. Errors come as `Failed`, not as exceptions."""
        ...

    def status(self) -> Health: ...
