"""The wire formats of streams: server-sent events and newline-delimited JSON, and the task that keeps them alive."""

from __future__ import annotations

import asyncio
import time

import msgspec
from starlette.types import Message, Send

DONE = b"data: [DONE]\n\n"
PING = b": ping\n\n"
BLANK = b"\n"  # the same for newline-delimited JSON


def encode(value: object) -> bytes:
    """JSON on one line, for clients that split lines where Python does (U+0085, U+2028, U+2029) too."""
    body = msgspec.json.encode(value)
    if not body.isascii():
        for character, escape in (
            (b"\xc2\x85", b"\\u0085"),
            (b"\xe2\x80\xa8", b"\\u2028"),
            (b"\xe2\x80\xa9", b"\\u2029"),
        ):
            body = body.replace(character, escape)
    return body


def data(value: object) -> bytes:
    """One server-sent event."""
    return b"data: " + encode(value) + b"\n\n"


def line(value: object) -> bytes:
    """One line of newline-delimited JSON."""
    return encode(value) + b"\n"


class StreamBody:
    """The body of a streamed response: held back until `start`, then written through, never silent for long."""

    def __init__(self, send: Send, status: int, headers: list[tuple[bytes, bytes]], ping: bytes) -> None:
        self._send = send
        self._start: Message = {"type": "http.response.start", "status": status, "headers": headers}
        self._ping = ping
        self._held: list[bytes] = []
        self._order = asyncio.Lock()  # the writer and the keep-alive take turns
        self._last = time.monotonic()
        self._given_up = False
        self.started = False

    def give_up(self) -> None:
        """It will not be sent: something else answers. Only before `started`."""
        self._given_up = True

    async def start(self) -> None:
        """Commit to the status and send what was held; once is enough."""
        async with self._order:
            if self.started or self._given_up:
                return
            self.started = True
            await self._send(self._start)
            if self._held:
                await self._put(b"".join(self._held))

    async def write(self, body: bytes) -> None:
        async with self._order:
            if self.started:
                await self._put(body)
            else:
                self._held.append(body)

    async def end(self) -> None:
        await self.start()
        await self._send({"type": "http.response.body", "body": b"", "more_body": False})

    async def keep_alive(self, hold_s: float, ping_s: float) -> None:
        """Run beside the writer until cancelled: start the response after `hold_s`, then ping when it is quiet."""
        await asyncio.sleep(hold_s)
        await self.start()
        while True:
            quiet = time.monotonic() - self._last
            if quiet < ping_s:
                await asyncio.sleep(ping_s - quiet)
            else:
                await self.write(self._ping)

    async def _put(self, body: bytes) -> None:
        await self._send({"type": "http.response.body", "body": body, "more_body": True})
        self._last = time.monotonic()
