"""Who may call, and what one connection may cost."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import httpx2
import pytest
from fake_service import HELLO, TOKEN, FakeService, Server, Step, quick, serving
from routes import routes_of
from starlette.datastructures import Headers

from edgellm.config import Settings
from edgellm.contracts.events import Started, TextDelta
from edgellm.contracts.request import GenerateRequest
from edgellm.errors import ConfigError
from edgellm.server.security import Security

KEY = "sk-correct-horse"
SECRET = "-".join(["my", "diary"])  # in no line of the source, which a log may quote
CHAT: dict[str, Any] = {"model": "fake", "messages": [{"role": "user", "content": "hi"}]}


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    settings = Settings(allowed_hosts=("box.lan",), allowed_origins=("https://chat.example.org",))
    with serving(FakeService(), settings, quick(body_bytes=100_000)) as running:
        yield running


@pytest.fixture(scope="module")
def hasty() -> Iterator[Server]:
    """Waits for nobody."""
    with serving(FakeService(), limits=quick(header_s=0.6, body_s=0.6)) as running:
        yield running


@pytest.fixture(scope="module")
def locked() -> Iterator[Server]:
    with serving(FakeService(), Settings(api_keys=("sk-other", KEY))) as running:
        yield running


def chat(server: Server, headers: dict[str, str] | None = None, **options: Any) -> httpx2.Response:
    return httpx2.post(
        server.url + "/v1/chat/completions",
        headers=headers,
        trust_env=False,
        timeout=60,
        **({"json": CHAT} | options),
    )


def raw(server: Server, data: bytes, *, timeout: float = 5) -> bytes:
    """Send bytes as they are; what comes back until the server closes or falls silent."""
    with socket.create_connection(("127.0.0.1", server.port), timeout=timeout) as connection:
        with contextlib.suppress(TimeoutError, ConnectionError):  # it may be closed before all is sent
            connection.sendall(data)
        return _all(connection)


def _all(connection: socket.socket) -> bytes:
    received = b""
    try:
        while part := connection.recv(65536):
            received += part
    except (TimeoutError, ConnectionError):
        pass
    return received


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def requests_of(server: Server) -> int:
    return len(asked(server))


def asked(server: Server) -> list[GenerateRequest]:
    """The requests that reached the service."""
    service = server.app.state.front.service
    assert isinstance(service, FakeService)
    return service.requests


# -- host --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "host",
    [
        "localhost",
        "LOCALHOST:11435",
        "app.localhost",
        "127.0.0.1:1",
        "[::1]:80",
        "10.1.2.3",
        "box.lan",
        "localhost.",
    ],
)
def test_hosts_that_are_this_machine(server: Server, host: str) -> None:
    assert chat(server, {"host": host}).status_code == 200


@pytest.mark.parametrize(
    "host",
    [
        "evil.com",
        "evil.com:11435",
        "localhost.evil.com",
        "127.0.0.1.evil.com",
        "a@localhost",
        "localhost/x",
        "[::1",
    ],
)
def test_case_01_hosts_that_are_not(server: Server, host: str) -> None:
    before = requests_of(server)
    response = chat(server, {"host": host})
    assert response.status_code == 403
    assert response.json()["error"]["code"] == "forbidden"
    assert requests_of(server) == before


def test_case_01_an_empty_or_missing_host_is_refused(server: Server) -> None:
    assert b" 403 " in raw(server, b"GET /health HTTP/1.1\r\nHost:\r\nConnection: close\r\n\r\n")
    assert b" 403 " in raw(server, b"GET /health HTTP/1.0\r\n\r\n")


def test_the_host_is_checked_on_every_bind_address() -> None:
    security = Security.of(Settings(host="0.0.0.0", api_keys=(KEY,)), TOKEN)
    assert not security.host_allowed("evil.com")
    assert security.host_allowed("192.168.1.5:11435")


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.5", "box.lan"])
def test_no_key_no_other_machines(host: str) -> None:
    with pytest.raises(ConfigError, match="no API key"):
        Security.of(Settings(host=host), TOKEN)
    Security.of(Settings(host=host, api_keys=(KEY,)), TOKEN)


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.8.8", "::1", "localhost"])
def test_loopback_needs_no_key(host: str) -> None:
    Security.of(Settings(host=host), TOKEN)


# -- origin ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "origin", ["https://evil.com", "null", "http://localhost:3000", "file://", "", "http://[::1", "é"]
)
def test_case_02_other_origins_are_refused_and_get_no_cors_headers(server: Server, origin: str) -> None:
    for method in ("POST", "OPTIONS"):
        response = httpx2.request(
            method,
            server.url + "/v1/chat/completions",
            headers={b"origin": origin.encode(), b"access-control-request-method": b"POST"},
            json=CHAT,
            trust_env=False,
        )
        assert response.status_code == 403
        assert not [name for name in response.headers if name.startswith("access-control")]


def test_listed_origins_get_cors(server: Server) -> None:
    headers = {"origin": "https://chat.example.org", "access-control-request-method": "POST"}
    asked = httpx2.options(server.url + "/v1/chat/completions", headers=headers, trust_env=False)
    assert asked.status_code == 204
    assert "authorization" in asked.headers["access-control-allow-headers"]
    for response in (asked, chat(server, {"origin": "https://chat.example.org"})):
        assert response.headers["access-control-allow-origin"] == "https://chat.example.org"
        assert response.headers["vary"] == "origin"


def test_the_servers_own_pages_are_no_other_origin(server: Server) -> None:
    assert chat(server, {"origin": server.url}).status_code == 200


def test_no_cors_headers_without_an_origin(server: Server) -> None:
    assert not [name for name in chat(server).headers if name.startswith("access-control")]


def test_all_origins_at_once_cannot_be_allowed() -> None:
    with pytest.raises(ConfigError, match="any web page"):
        Security.of(Settings(allowed_origins=("*",)), TOKEN)


@pytest.mark.parametrize(
    "name", ["*", "*.example.org", "https://box.lan", "box.lan:8080", "box.lan/v1", "a b", "", "-a"]
)
def test_a_host_that_nothing_would_match_is_refused(name: str) -> None:
    with pytest.raises(ConfigError, match="not the name of a host"):
        Security.of(Settings(allowed_hosts=("box.lan", name)), TOKEN)


@pytest.mark.parametrize("name", ["box", "box.lan", "Box.lan.", "my_box-2.internal", "10.0.0.7", "机器.lan"])
def test_names_of_hosts_are_taken(name: str) -> None:
    assert Security.of(Settings(allowed_hosts=(name,)), TOKEN).host_allowed(name)


# -- content type ------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data", ""])
def test_case_03_only_json_is_a_request(server: Server, kind: str) -> None:
    before = requests_of(server)
    for path in ("/v1/chat/completions", "/edgellm/v1/stop", "/edgellm/v1/shutdown"):
        response = httpx2.post(
            server.url + path, content=json.dumps(CHAT), headers={"content-type": kind}, trust_env=False
        )
        assert response.status_code == 415
    assert requests_of(server) == before


@pytest.mark.parametrize("path", ["/api/chat", "/chat/completions", "/v1/responses", "/completion"])
def test_what_is_nowhere_is_told_so_whatever_its_form(server: Server, path: str) -> None:
    """Who comes from another server learns that it is the address, not the header, and where things are."""
    for headers in ({"content-type": "application/x-www-form-urlencoded"}, {"content-type": "application/json"}):
        response = httpx2.post(server.url + path, content=json.dumps(CHAT), headers=headers, trust_env=False)
        assert response.status_code == 404
        message = response.json()["error"]["message"]
        assert f"there is nothing at POST {path}" in message
        assert "/v1 as their base URL; GET / says" in message
    unasked = httpx2.post(
        server.url + "/v1/models", content="x", headers={"content-type": "text/plain"}, trust_env=False
    )
    assert unasked.status_code == 415


def test_a_compressed_body_is_refused_by_that_name(server: Server) -> None:
    url = server.url + "/v1/chat/completions"
    for encoding, status in (("gzip", 415), ("identity", 200)):
        response = httpx2.post(url, json=CHAT, headers={"content-encoding": encoding}, trust_env=False)
        assert response.status_code == status
        assert status == 200 or "must not be compressed" in response.json()["error"]["message"]


def test_json_with_a_charset_is_json(server: Server) -> None:
    response = chat(server, {"content-type": "application/json; charset=utf-8"}, json=None, content=json.dumps(CHAT))
    assert response.status_code == 200


# -- keys --------------------------------------------------------------------------------------------


def test_case_04_every_route_but_health_needs_a_key(locked: Server) -> None:
    routes = routes_of(locked.app)
    paths = {path for _, path in routes}
    assert {"/health", "/metrics", "/v1/models/{name:path}", "/edgellm/v1/shutdown"} <= paths
    for method, path in [*routes, ("GET", "/nothing"), ("POST", "/v1/chat/completions/")]:
        response = httpx2.request(method, locked.url + path, json={}, trust_env=False)
        assert response.status_code == (200 if path == "/health" else 401), path
    assert "models" not in httpx2.get(locked.url + "/health", trust_env=False).json()


@pytest.mark.parametrize(
    "headers",
    [
        {"authorization": f"Bearer {KEY}"},
        {"authorization": f"bearer  {KEY}"},
        {"x-api-key": KEY},
        {"authorization": f"Bearer {TOKEN}"},
    ],
)
def test_keys_that_open(locked: Server, headers: dict[str, str]) -> None:
    assert chat(locked, headers).status_code == 200
    health = httpx2.get(locked.url + "/health", headers=headers, trust_env=False)
    assert health.json()["models"]["fake:latest"]["state"] == "ready"


@pytest.mark.parametrize(
    "headers",
    [
        {"authorization": "Bearer ' OR 1=1--"},
        {"authorization": "Bearer " + "x" * 100_000},
        {"authorization": f"Basic {KEY}"},
        {"authorization": KEY},
        {"authorization": "Bearer"},
        {"x-api-key": KEY + " x"},
        {"x-api-key": ""},
    ],
)
def test_case_05_keys_that_do_not(locked: Server, headers: dict[str, str]) -> None:
    response = chat(locked, headers)
    assert response.status_code == 401
    assert response.headers["www-authenticate"] == "Bearer"
    assert response.json()["error"]["code"] == "unauthorized"


def test_case_14_keys_share_no_cached_prompts(locked: Server) -> None:
    native = {"id": "", "model": "fake", "prompt": {"type": "text", "text": "hi"}, "cache_key": "somebody else's"}
    chat(locked, {"x-api-key": KEY})
    chat(locked, {"authorization": f"Bearer {TOKEN}"})
    httpx2.post(locked.url + "/edgellm/v1/generate", json=native, headers={"x-api-key": KEY}, trust_env=False)
    mine, tokens, again = (request.cache_key for request in asked(locked)[-3:])
    assert mine == again != tokens
    assert KEY not in mine


def test_without_keys_all_share(server: Server) -> None:
    chat(server)
    chat(server, {"x-api-key": "anything"})
    assert [request.cache_key for request in asked(server)[-2:]] == ["", ""]


def test_keys_are_kept_as_hashes_only() -> None:
    security = Security.of(Settings(api_keys=("schlüssel",)), TOKEN)
    assert "schlüssel" not in repr(security)
    assert TOKEN not in repr(security)
    sent = [(b"authorization", "Bearer schlüssel".encode())]
    assert security.key_known(Headers(raw=sent))


# -- cost --------------------------------------------------------------------------------------------

HEAD = b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"


def test_case_13_a_body_that_says_it_is_too_large(hasty: Server) -> None:
    answer = raw(hasty, HEAD + b"Connection: close\r\nContent-Length: 1000000000\r\n\r\n")
    assert answer.startswith(b"HTTP/1.1 413 ")  # who waits for it says 408
    assert b"payload_too_large" in answer


def test_case_13_a_chunked_body_that_does_not(server: Server) -> None:
    chunk = b"2710\r\n" + b" " * 10_000 + b"\r\n"
    with socket.create_connection(("127.0.0.1", server.port), timeout=60) as connection:
        connection.sendall(HEAD + b"Transfer-Encoding: chunked\r\n\r\n" + chunk * 12)
        assert connection.recv(65536).startswith(b"HTTP/1.1 413 ")


def test_a_client_that_sends_everything_first_still_reads_the_413(server: Server) -> None:
    assert (
        chat(server, content=b" " * 5_000_000, json=None, headers={"content-type": "application/json"}).status_code
        == 413
    )
    assert chat(server).status_code == 200


def test_case_13_json_that_is_too_deep(server: Server) -> None:
    for body in (b'{"x":' + b"[" * 45_000, b'{"tools":' + b"[" * 40_000 + b"]" * 40_000 + b"}"):
        response = chat(server, {"content-type": "application/json"}, content=body, json=None)
        assert response.status_code == 400
        assert "nested too deeply" in response.json()["error"]["message"]


def test_case_13_too_many_headers(server: Server) -> None:
    many = b"".join(b"X-%d: y\r\n" % index for index in range(10_000))
    for headers in (many, many[:2000]):
        head = b"GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
        assert raw(server, head + headers + b"\r\n").startswith(b"HTTP/1.1 431 ")


def test_case_13_a_head_that_never_ends(server: Server) -> None:
    answer = raw(server, b"GET / HTTP/1.1\r\nHost: localhost\r\nX: " + b"y" * 1_000_000)
    assert answer.startswith(b"HTTP/1.1 431 ") or answer == b""  # reset before it could be read


def test_case_13_a_head_that_comes_byte_by_byte(hasty: Server) -> None:
    with socket.create_connection(("127.0.0.1", hasty.port), timeout=60) as connection:
        head = b"GET /health HTTP/1.1\r\nX-Slow: " + b"y" * 200
        sent = bytearray()
        dripping = threading.Thread(target=_drip, args=(connection, head, sent))
        dripping.start()
        answer = _all(connection)
        dripping.join()
    assert answer.startswith(b"HTTP/1.1 408 ")
    assert 0 < len(sent) < len(head)  # each byte did not begin the wait anew


def test_a_slow_head_on_a_used_connection(hasty: Server) -> None:
    with socket.create_connection(("127.0.0.1", hasty.port), timeout=60) as connection:
        connection.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
        answer = b""
        while not answer.endswith(b"}}}"):
            answer += connection.recv(65536)
        assert answer.startswith(b"HTTP/1.1 200 ")
        connection.sendall(b"GET /health HTTP/1.1\r\n")
        assert _all(connection).startswith(b"HTTP/1.1 408 ")


def test_case_13_a_body_that_comes_byte_by_byte(hasty: Server) -> None:
    with socket.create_connection(("127.0.0.1", hasty.port), timeout=60) as connection:
        connection.sendall(HEAD + b"Content-Length: 1000\r\n\r\n")
        threading.Thread(target=_drip, args=(connection, b" " * 200, bytearray())).start()
        answer = _all(connection)
    assert answer.startswith(b"HTTP/1.1 408 ")
    assert b'"type":"timeout_error"' in answer


def test_what_is_no_http(server: Server) -> None:
    answer = raw(server, b"\x16\x03\x01 hello\r\n\r\n")
    assert answer.startswith(b"HTTP/1.1 400 ")
    assert b'"code":"invalid_request"' in answer


def test_a_failure_of_ours_tells_nothing(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    def models() -> None:
        raise RuntimeError("secret detail at /home/somebody")

    monkeypatch.setattr(server.app.state.front.service, "models", models)
    response = httpx2.get(server.url + "/v1/models", trust_env=False)
    assert response.status_code == 500
    assert response.headers["x-request-id"].startswith("req_")
    assert "secret" not in response.text
    error = response.json()["error"]
    assert error["code"] == "internal_error"
    assert "edgellm logs" in error["message"]


def test_the_log_of_a_failure_says_where_and_not_what(
    server: Server, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def model(name: str) -> None:
        raise KeyError(SECRET)

    monkeypatch.setattr(server.app.state.front.service, "model", model)
    caplog.set_level("INFO")
    assert chat(server, {"x-request-id": "abc"}).status_code == 500
    assert "request abc failed with KeyError" in caplog.text
    assert "in _find" in caplog.text
    assert SECRET not in caplog.text


def test_an_answer_that_breaks_in_the_daemon_breaks_off_and_logs_no_content(caplog: pytest.LogCaptureFixture) -> None:
    async def explode() -> None:
        raise KeyError(SECRET)

    caplog.set_level("INFO")
    with serving(FakeService([Started(7, 3, 42), TextDelta("Hel"), explode])) as server:
        with (
            pytest.raises(httpx2.RemoteProtocolError, match="incomplete"),
            httpx2.stream(
                "POST", server.url + "/v1/chat/completions", json=CHAT | {"stream": True}, trust_env=False
            ) as response,
        ):
            response.read()
        assert server.app.state.front.running == 0
    assert "failed with KeyError" in caplog.text
    assert SECRET not in caplog.text


def test_large_bodies_are_bounded_together_and_small_ones_pass() -> None:
    inside, go = threading.Event(), threading.Event()

    async def held() -> None:
        inside.set()
        while not go.is_set():
            await asyncio.sleep(0.01)

    service = FakeService([Started(7, 3, 42), held, *HELLO[2:]])
    with serving(service, limits=quick(bodies_bytes=1_000_000)) as server:
        large = CHAT | {"messages": [{"role": "user", "content": "x" * 600_000}]}
        first = threading.Thread(target=lambda: chat(server, json=large))
        first.start()
        assert inside.wait(60)
        service.script = HELLO
        refused = chat(server, json=large)
        assert (refused.status_code, refused.headers["retry-after"]) == (429, "1")
        assert "large requests" in refused.json()["error"]["message"]
        assert chat(server).status_code == 200
        go.set()
        first.join(60)
        assert chat(server, json=large).status_code == 200


def test_connections_are_bounded_and_unused_ones_make_room() -> None:
    with serving(FakeService(), limits=quick(connections=3)) as server, contextlib.ExitStack() as opened:

        def connected() -> socket.socket:
            return opened.enter_context(socket.create_connection(("127.0.0.1", server.port), timeout=60))

        def heads_begun() -> int:
            return sum(bool(each.conn.trailing_data[0]) for each in server.connections())

        unused = connected()
        unused.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert unused.recv(65536).startswith(b"HTTP/1.1 200 ")
        busy = [connected(), connected()]
        for connection in busy:
            connection.sendall(b"GET /health HTTP/1.1\r\n")  # in the midst of a head
        until(lambda: heads_begun() == 2)
        assert httpx2.get(server.url + "/health", trust_env=False).status_code == 200  # in place of the unused one
        unused.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert not _all(unused).startswith(b"HTTP")
        busy.append(connected())
        busy[-1].sendall(b"GET /health HTTP/1.1\r\n")
        until(lambda: heads_begun() == 3)
        refused = raw(server, b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert refused.startswith(b"HTTP/1.1 503 ")
        assert b"retry-after: 1" in refused
        for connection in busy:
            connection.sendall(b"Host: localhost\r\n\r\n")
            assert connection.recv(65536).startswith(b"HTTP/1.1 200 ")


def test_the_front_door_says_who_is_there(server: Server) -> None:
    response = httpx2.get(server.url, trust_env=False)
    assert (response.status_code, response.headers["content-type"]) == (200, "text/plain; charset=utf-8")
    assert response.text.startswith("edgellm 0.1.0 is running.\n")
    assert f"{server.url}/v1" in response.text
    assert httpx2.head(server.url, trust_env=False).status_code == 200


def _drip(connection: socket.socket, data: bytes, sent: bytearray) -> None:
    try:
        for byte in data:
            connection.sendall(bytes([byte]))
            sent.append(byte)
            time.sleep(0.02)
    except OSError:
        pass


def test_case_20_a_reader_that_stops_reading_loses_its_stream_and_nobody_else_waits() -> None:
    endless: list[Step] = [Started(7, 3, 42), *[TextDelta("x" * 20_000)] * 2_000]  # more than kernels buffer
    service = FakeService(endless)
    with serving(service, limits=quick(write_s=3.0)) as server:
        body = json.dumps(CHAT | {"stream": True}).encode()
        with socket.create_connection(("127.0.0.1", server.port)) as reader:
            reader.sendall(HEAD + b"Content-Length: %d\r\n\r\n" % len(body) + body)
            until(lambda: any(each.flow.write_paused for each in server.connections()))
            service.script = HELLO
            assert chat(server).status_code == 200
            assert not service.closed
            until(lambda: bool(service.closed))
            until(lambda: server.app.state.front.running == 0)
