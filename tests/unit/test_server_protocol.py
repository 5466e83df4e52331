"""Deadlines of connections, where the daemon itself was held up."""

from __future__ import annotations

import socket
import time

from fake_service import FakeService, quick, serving


def test_a_daemon_that_was_held_up_blames_no_client() -> None:
    with serving(FakeService(), limits=quick(header_s=2.0)) as server:
        loop = server.loop()
        with socket.create_connection(("127.0.0.1", server.port), timeout=60) as connection:
            time.sleep(0.1)
            loop.call_soon_threadsafe(time.sleep, 4.0)  # no event is heard meanwhile, and the deadline passes
            time.sleep(0.1)
            connection.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
            assert connection.recv(65536).startswith(b"HTTP/1.1 200 ")
