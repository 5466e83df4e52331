"""What the daemon and a worker say to each other: 4-byte big-endian length, then one msgpack message.

    daemon -> worker   Load  Generate | Embed  Cancel  Shutdown
    worker -> daemon   Hello (first)  Loading  Ready | LoadError  Emitted  Heartbeat

All events of one step travel in one `Emitted`. End of file on the worker's stdin means the daemon is gone.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from edgellm.contracts.embedding import EmbedRequest
from edgellm.contracts.engine import Placement
from edgellm.contracts.events import Event
from edgellm.contracts.request import GenerateRequest
from edgellm.contracts.runner import RunnerInfo
from edgellm.engine.limits import Limits
from edgellm.errors import UNREADABLE, ErrorInfo

PROTOCOL = 1
FRAME_LIMIT = 64 * 1024 * 1024
HEARTBEAT_S = 1.0


class Load(msgspec.Struct, frozen=True, tag=True):
    """Load this model; the worker answers Loading*, then Ready or LoadError (and exits after that)."""

    engine: str  # entry-point name
    path: str
    placement: Placement
    model: str  # the name users know, for messages
    limits: Limits = Limits()
    draft: str = ""  # path of a smaller model of the same vocabulary that guesses for it
    embeds: bool = False  # for a worker that makes embeddings


class Generate(msgspec.Struct, frozen=True, tag=True):
    request: GenerateRequest


class Embed(msgspec.Struct, frozen=True, tag=True):
    request: EmbedRequest


class Cancel(msgspec.Struct, frozen=True, tag=True):
    """Stop working on a request; no further event of it is sent. Unknown ids are ignored."""

    id: str


class Shutdown(msgspec.Struct, frozen=True, tag=True):
    """Free everything and exit 0 now."""


class Hello(msgspec.Struct, frozen=True, tag=True):
    protocol: int
    version: str
    pid: int


class Loading(msgspec.Struct, frozen=True, tag=True):
    done: float  # 0..1


class Ready(msgspec.Struct, frozen=True, tag=True):
    info: RunnerInfo
    load_s: float


class LoadError(msgspec.Struct, frozen=True, tag=True):
    error: ErrorInfo


class Emitted(msgspec.Struct, frozen=True, tag=True):
    """Events of one step, in order: (request id, event)."""

    events: list[tuple[str, Event]]


class Heartbeat(msgspec.Struct, frozen=True, tag=True):
    """Sent every second by a thread of its own, and so proof of life even during a long step."""

    step: int  # steps begun
    step_age_s: float  # how long the current step has run; 0 between steps
    step_predicted_s: float
    running: int
    waiting: int
    kv_used: int  # units of RunnerInfo.capacity
    suspended: int = 0  # times a request had to give way to others, since the start


Request = GenerateRequest | EmbedRequest
ToWorker = Load | Generate | Embed | Cancel | Shutdown
FromWorker = Hello | Loading | Ready | LoadError | Emitted | Heartbeat


class ProtocolError(Exception):
    """The other side does not speak this protocol."""


def asking(request: Request) -> Generate | Embed:
    """The message that carries a request."""
    return Embed(request) if isinstance(request, EmbedRequest) else Generate(request)


_encoder = msgspec.msgpack.Encoder()


def encode(message: ToWorker | FromWorker) -> bytes:
    """One frame, ready to write."""
    body = _encoder.encode(message)
    if len(body) > FRAME_LIMIT:
        raise ProtocolError(f"a message of {len(body)} bytes exceeds the limit of {FRAME_LIMIT}")
    return len(body).to_bytes(4, "big") + body


class FrameReader:
    """Cuts a byte stream into messages of one type; feed it what arrives."""

    def __init__(self, kind: Any) -> None:
        self._decoder = msgspec.msgpack.Decoder(kind)
        self._buffer = bytearray()

    def feed(self, data: bytes) -> Iterator[Any]:
        """The messages completed by `data`. Raises ProtocolError on a frame that is too long or malformed."""
        self._buffer += data
        while len(self._buffer) >= 4:
            length = int.from_bytes(self._buffer[:4], "big")
            if length > FRAME_LIMIT:
                raise ProtocolError(f"a frame of {length} bytes exceeds the limit of {FRAME_LIMIT}")
            if len(self._buffer) < 4 + length:
                return
            body = bytes(self._buffer[4 : 4 + length])
            del self._buffer[: 4 + length]
            try:
                yield self._decoder.decode(body)
            except UNREADABLE as error:
                raise ProtocolError(f"malformed frame: {error}") from error
