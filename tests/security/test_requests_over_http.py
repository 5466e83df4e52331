"""Cases 1, 6, 7, 11, 12, 13 and 14 over HTTP, with the daemon's own limits; and what errors and logs do not hold."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import psutil
import pytest
from fake_service import FakeService, Server, quick, serving
from process_service import processes
from routes import routes_of

from edgellm.config import Settings
from edgellm.paths import default_paths
from edgellm.server import keys

CHAT: dict[str, Any] = {"model": "fake", "messages": [{"role": "user", "content": "hi"}]}


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with serving(FakeService()) as running:
        yield running


def chat(server: Server, content: bytes | None = None, **fields: Any) -> httpx2.Response:
    body = json.dumps(CHAT | fields).encode() if content is None else content
    headers = {"content-type": "application/json"}
    return httpx2.post(server.url + "/v1/chat/completions", content=body, headers=headers, trust_env=False, timeout=30)


def test_case_01_the_host_is_checked_though_every_address_listens_and_the_key_is_right() -> None:
    with serving(FakeService(), Settings(host="0.0.0.0", api_keys=("k",))) as server:
        for host, status in (("evil.com", 403), (f"127.0.0.1:{server.port}", 200)):
            headers = {"host": host, "authorization": "Bearer k"}
            assert httpx2.get(server.url + "/v1/models", headers=headers, trust_env=False).status_code == status


@pytest.mark.parametrize(
    ("target", "host", "status"),
    [
        ("http://localhost:1/health", "evil.com", 200),  # whose header does not count then
        ("HTTP://127.0.0.1/health?x=/", "evil.com", 200),
        ("http://localhost", "localhost", 200),
        ("http://evil.com/health", "localhost", 403),
        ("http://localhost@evil.com/health", "localhost", 403),
        ("http:///health", "localhost", 403),
        ("http://localhost//health", "localhost", 404),
        ("https://localhost/health", "localhost", 404),
    ],
)
def test_case_01_a_target_that_is_a_whole_address(target: str, host: str, status: int, server: Server) -> None:
    with socket.create_connection(("127.0.0.1", server.port), timeout=30) as connection:
        connection.sendall(f"GET {target} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n".encode())
        assert connection.recv(1 << 16).startswith(f"HTTP/1.1 {status} ".encode())


@pytest.mark.parametrize(
    "digest", ["sha256:../../etc/passwd", "sha256:" + "0" * 63, "sha256:" + "0" * 65, "sha256-" + "0" * 64 + "/../x"]
)
def test_case_06_a_digest_is_no_name(digest: str, server: Server) -> None:
    assert chat(server, model=digest).json()["error"]["code"] in ("invalid_name", "model_not_found")
    if ".." in digest:
        assert chat(server, model=digest).status_code == 400


@pytest.mark.parametrize("name", ["../../etc/passwd", "/etc/passwd", "..\\x", "C:\\x", "\\\\host\\share", "{tmp}"])
def test_case_07_a_path_is_no_name_whether_or_not_something_is_there(name: str, home: Path, tmp_path: Path) -> None:
    there = tmp_path / "there.gguf"
    name = name.replace("{tmp}", str(there))
    with processes() as running:

        def answers() -> list[tuple[int, bytes]]:
            native = {"id": "", "model": name, "prompt": {"type": "text", "text": "x"}}
            found = [
                running.http.post("/v1/chat/completions", json=CHAT | {"model": name}),
                running.http.post("/v1/completions", json={"model": name, "prompt": "x"}),
                running.http.post("/v1/embeddings", json={"model": name, "input": "x"}),
                running.http.post("/edgellm/v1/generate", json=native),
                running.http.post("/edgellm/v1/stop", json={"model": name}),
            ]
            return [(response.status_code, response.content) for response in found]

        missing = answers()
        there.write_bytes(b"GGUF")
        assert answers() == missing
        assert {status for status, _ in missing} == {400}


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"max_tokens": -1}, "max_tokens"),
        ({"n": 1_000_000}, "n"),
        ({"stop": ["x"] * 1000}, "stop"),
        ({"temperature": float("nan")}, "temperature"),
        ({"temperature": float("inf")}, "temperature"),
        ({"temperature": -1}, "temperature"),
        ({"top_p": -0.5}, "top_p"),
    ],
)
def test_case_11_values_out_of_range_are_a_400_naming_the_field(
    fields: dict[str, Any], param: str, server: Server
) -> None:
    response = chat(server, **fields)
    assert (response.status_code, response.json()["error"]["param"]) == (400, param)


EVIL_REGEX = "(a+)+$"


def deep_schema(levels: int) -> str:
    return '{"type":"object","properties":{"x":' * levels + "{}" + "}}" * levels


@pytest.mark.parametrize(
    "fields",
    [
        {"response_format": {"type": "json_object"}},
        {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": {"pattern": EVIL_REGEX}}}},
        {"grammar": 'root ::= "a"*'},
        {"guided_regex": EVIL_REGEX},
        {"guided_json": {"type": "object"}},
        {"structured_outputs": {"regex": EVIL_REGEX}},
        {"regex": EVIL_REGEX},
        {"ebnf": 'root ::= "a"'},
        {"json_schema": {"type": "object"}},
        {"structural_tag": "{}"},
    ],
)
def test_case_12_a_form_for_the_answer_is_refused_by_name_and_never_passed_over(
    fields: dict[str, Any], server: Server
) -> None:
    response = chat(server, **fields)
    error = response.json()["error"]
    assert (response.status_code, error["param"]) == (400, next(iter(fields)))
    assert "not supported yet" in error["message"]


def test_case_12_deep_and_many_schemas_cost_nothing(server: Server) -> None:
    def asked(schema: str) -> int:
        form = '{"type":"json_schema","json_schema":{"name":"x","schema":' + schema + "}}"
        body = json.dumps(CHAT)[:-1] + ',"response_format":' + form + "}"
        return chat(server, body.encode()).status_code

    assert asked(deep_schema(10_000)) == 400
    memory = psutil.Process().memory_info().rss
    with httpx2.Client(base_url=server.url, trust_env=False) as http:
        for number in range(1000):
            schema = {"type": "object", "properties": {f"p{number}": {"type": "string", "pattern": EVIL_REGEX}}}
            form = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
            assert http.post("/v1/chat/completions", json=CHAT | {"response_format": form}).status_code == 400
    assert psutil.Process().memory_info().rss - memory < 32 << 20


def test_case_13_a_gigabyte_that_comes_in_chunks_is_cut_off_early(server: Server) -> None:
    head = b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    chunk = b"100000\r\n" + b" " * (1 << 20) + b"\r\n"
    memory, began = psutil.Process().memory_info().rss, time.monotonic()
    with socket.create_connection(("127.0.0.1", server.port), timeout=20) as connection:
        connection.sendall(head + b"Transfer-Encoding: chunked\r\n\r\n")
        sent = 0
        connection.setblocking(False)
        answer = b""
        while not answer and sent < 1 << 30 and time.monotonic() < began + 20:
            try:
                sent += connection.send(chunk[sent % len(chunk) :])
            except BlockingIOError:
                time.sleep(0.005)
            try:
                answer = connection.recv(65536)
            except BlockingIOError:
                pass
    assert answer.startswith(b"HTTP/1.1 413 ")
    assert sent < 64 << 20
    assert psutil.Process().memory_info().rss - memory < 128 << 20


@pytest.mark.parametrize("opening", [b"[", b'{"a":'])
def test_case_13_json_a_hundred_thousand_deep(opening: bytes, server: Server) -> None:
    for body in (opening * 100_000, b'{"model":"fake","messages":' + opening * 100_000):
        response = chat(server, body)
        assert response.status_code == 400
    assert chat(server).status_code == 200


def test_case_14_there_is_nothing_to_look_up_by_an_id(server: Server) -> None:
    """Where a route with an id is added, answers of other keys must be a 404 there: then extend this test."""
    by_value = {path for _, path in routes_of(server.app) if "{" in path}
    assert by_value == {"/v1/models/{name:path}"}


def test_case_14_a_revoked_key_opens_nothing_from_the_next_request_on(home: Path) -> None:
    paths = default_paths()
    mine, other = keys.add(paths, "mine"), keys.add(paths, "other")
    with serving(FakeService(), key_file=keys.path_of(paths)) as server:

        def status(key: str) -> int:
            headers = {"x-api-key": key}
            return httpx2.get(server.url + "/v1/models", headers=headers, trust_env=False).status_code

        assert (status(mine), status(other), status(keys.hashed(mine).hex())) == (200, 200, 401)
        keys.remove(paths, "other")
        assert (status(mine), status(other)) == (200, 401)


CANARY = "-".join(["my", "diary", "7f3a"])  # in no line of the source, which a log may quote


def test_no_error_and_no_log_holds_what_was_asked_and_no_error_holds_a_path(
    home: Path, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    caplog.set_level("INFO")
    with processes(limits=quick(body_s=0.5)) as running:
        failures = [
            running.ask(f"die-decode {CANARY}"),
            running.ask(f"die-prefill {CANARY}"),
            running.ask(f"garbage {CANARY}"),
            running.ask(f"fail {CANARY}"),
            running.ask(CANARY, temperature=CANARY),
            running.ask(CANARY, grammar=CANARY),
            running.ask(CANARY, n=f"{CANARY}"),
            running.ask(CANARY, stop=[CANARY] * 17),
            running.http.post("/v1/chat/completions", json=CHAT | {"messages": [{"role": CANARY, "content": CANARY}]}),
            running.http.post("/v1/chat/completions", content=CANARY.encode(), headers={"content-type": "text/plain"}),
            running.http.post(
                "/v1/chat/completions", content=CANARY.encode(), headers={"content-type": "application/json"}
            ),
        ]
        log = default_paths().worker_log("fake:latest")
        logged = caplog.text + (log.read_text() if log.exists() else "") + "".join(capfd.readouterr())
    for response in failures:
        assert response.status_code >= 400
        assert CANARY not in response.text
        assert str(home) not in response.text
        assert "Traceback" not in response.text
        assert ".py" not in response.text
    assert "died" in logged
    assert CANARY not in logged
