"""HTTP/1.1 connections with deadlines: uvicorn's own protocol waits for ever for a head, a body, or a reader."""

from __future__ import annotations

import asyncio
import socket
import sys

import h11
import msgspec
from uvicorn.protocols.http.h11_impl import STATUS_PHRASES, H11Protocol

from edgellm.errors import ErrorInfo
from edgellm.server.body import Limits
from edgellm.server.errors import openai_error

_CROWDED = ErrorInfo("unavailable", "too many connections at once", "send it again in a moment", retriable=True)


def protocol_class(limits: Limits) -> type[H11Protocol]:
    """The protocol for uvicorn, with these limits bound to it (uvicorn makes the instances)."""

    class Protocol(DeadlineProtocol):
        pass

    Protocol.limits = limits
    return Protocol


class DeadlineProtocol(H11Protocol):
    """Ends connections that send their head too slowly, never finish a body that is not wanted, or stop reading."""

    limits = Limits()
    _head: asyncio.TimerHandle | None = None
    _rest: asyncio.TimerHandle | None = None
    _write: asyncio.TimerHandle | None = None
    _surplus = False  # one connection too many: what it asks is refused

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        # asyncio does this only where the listening socket names its protocol, and ours does not. Without it the second
        # small write of an answer, each piece of a stream too, waits some 40 ms for the reader's acknowledgement.
        self._surplus = len(self.connections) > self.limits.connections and not self._make_room()
        if len(self.connections) > 2 * self.limits.connections:
            transport.abort()
            return
        transport.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._await_head()

    def data_received(self, data: bytes) -> None:
        if self._surplus and not self.transport.is_closing():
            self.conn.receive_data(data)  # read before it is closed, or the answer is lost with the connection
            self._refuse(503, _CROWDED, ("retry-after", "1"))
            return
        super().data_received(data)
        self._await_head()

    def connection_lost(self, exc: Exception | None) -> None:
        for timer in (self._head, self._rest, self._write):
            if timer is not None:
                timer.cancel()
        self._head = self._rest = self._write = None
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        super().pause_writing()
        self._write = self.loop.call_later(self.limits.write_s, self.transport.abort)

    def resume_writing(self) -> None:
        if self._write is not None:
            self._write.cancel()
            self._write = None
        super().resume_writing()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self.conn.their_state is h11.SEND_BODY:  # answered before the body was read: what still comes is dropped
            self._rest = self.loop.call_later(self.limits.body_s, self.transport.abort)

    def send_400_response(self, msg: str) -> None:
        """Called by uvicorn while it handles what h11 raised; its own text is as vague as `msg`."""
        del msg
        error = sys.exception()
        status = error.error_status_hint if isinstance(error, h11.RemoteProtocolError) else 400
        if status == 431:
            self._refuse(431, ErrorInfo("headers_too_large", "the request's head is too large"))
        else:
            self._refuse(400, ErrorInfo("invalid_request", "this is not a valid HTTP request"))

    def _make_room(self) -> bool:
        """Close the connection that has been unused for longest; False when all are in use."""
        unused = [
            (timer.when(), connection)
            for connection in self.connections
            if isinstance(connection, DeadlineProtocol) and (timer := connection.timeout_keep_alive_task) is not None
        ]
        if unused:
            min(unused, key=lambda pair: pair[0])[1].transport.close()
        return bool(unused)

    def _await_head(self) -> None:
        """Keep a deadline running while a head is incomplete: from the connection's start, then from its first byte."""
        if self._rest is not None and self.conn.their_state is not h11.SEND_BODY:
            self._rest.cancel()
            self._rest = None
        begun = self.cycle is None or bool(self.conn.trailing_data[0])
        if self.conn.their_state is h11.IDLE and begun and not self.transport.is_closing():
            if self._head is None:
                self._head = self.loop.call_later(self.limits.header_s, self._head_is_late)
        elif self._head is not None:
            self._head.cancel()
            self._head = None

    def _head_is_late(self) -> None:
        self._head = None
        if not self.transport.is_closing():
            self._refuse(408, ErrorInfo("timeout", "the request took too long to arrive"))

    def _refuse(self, status: int, error: ErrorInfo, *extra: tuple[str, str]) -> None:
        """Answer below ASGI, where there is no request yet, and close."""
        body = msgspec.json.encode(openai_error(error, status))
        headers = [
            ("content-type", "application/json"),
            ("content-length", str(len(body))),
            ("connection", "close"),
            *extra,
        ]
        response = h11.Response(status_code=status, headers=headers, reason=STATUS_PHRASES[status])
        try:
            for event in (response, h11.Data(data=body), h11.EndOfMessage()):
                self.transport.write(self.conn.send(event) or b"")
        except h11.LocalProtocolError:  # a response is under way already
            pass
        self.transport.close()
