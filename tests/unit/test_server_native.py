"""/edgellm/v1 through a real server."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import httpx2
import msgspec
import pytest
from fake_service import HELLO, LOADED, TOKEN, FakeService, Server, quick, serving

from edgellm.contracts.events import Event
from edgellm.contracts.request import GenerateRequest, Message, Messages, Sampling, Text, Tokens

REQUEST = GenerateRequest(id="", model="fake", prompt=Text("hi"))


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with serving(FakeService(), limits=quick(ping_s=0.1)) as running:
        yield running


def post(server: Server, path: str, body: object, token: str | None = None) -> httpx2.Response:
    headers = {"content-type": "application/json"} | ({"authorization": f"Bearer {token}"} if token else {})
    return httpx2.post(
        server.url + "/edgellm/v1/" + path,
        content=msgspec.json.encode(body),
        headers=headers,
        trust_env=False,
    )


def test_events_come_as_they_are(service: FakeService, server: Server) -> None:
    response = post(server, "generate", REQUEST)
    assert response.headers["content-type"] == "application/x-ndjson"
    events = [msgspec.json.decode(line, type=Event) for line in response.content.splitlines()]
    assert tuple(events) == HELLO
    assert service.requests[0].id.startswith("edge-")


def test_progress_is_not_held_back_and_silence_is_filled(service: FakeService, server: Server) -> None:
    service.script = (HELLO[0], 1.5, *HELLO[1:])
    body = msgspec.json.encode(REQUEST)
    headers = {"content-type": "application/json"}
    with httpx2.stream(
        "POST", server.url + "/edgellm/v1/generate", content=body, headers=headers, trust_env=False
    ) as response:
        chunks = response.iter_raw()
        first, rest = next(chunks), b"".join(chunks)
    assert first.startswith(b'{"type":"progress"')
    assert rest.startswith(b"\n\n")


def test_an_unknown_model_has_a_status(service: FakeService, server: Server) -> None:
    response = post(server, "generate", GenerateRequest(id="", model="none", prompt=Text("hi")))
    assert response.status_code == 404
    error = response.json()["error"]
    assert (error["code"], error["hint"], error["param"]) == ("not_found", "did you mean fake?", "model")


@pytest.mark.parametrize(
    ("changes", "param"),
    [
        ({"sampling": Sampling(temperature=-1)}, "temperature"),
        ({"preset": "poetry"}, "preset"),
        ({"prompt": Messages((Message("user", "hi"),), {"tools": 1})}, "options"),
        ({"sampling": Sampling(top_p=0)}, "top_p"),
        ({"sampling": Sampling(top_k=-1)}, "top_k"),
        ({"sampling": Sampling(seed=2**64)}, "seed"),
        ({"sampling": Sampling(mirostat=1)}, "mirostat"),
        ({"sampling": Sampling(logit_bias={-1: 1.0})}, "logit_bias"),
        ({"sampling": Sampling(dry_breakers=("",))}, "dry_breakers[0]"),
        ({"n": 17}, "n"),
        ({"n": 3, "best_of": 2}, "best_of"),
        ({"logprobs": -1}, "logprobs"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"stop": ("",)}, "stop"),
        ({"stop": ("x",) * 17}, "stop"),
        ({"timeout_s": 0.0}, "timeout_s"),
        ({"priority": 10**6}, "priority"),
        ({"prompt": Messages(())}, "prompt"),
        ({"prompt": Tokens((1, -1))}, "prompt"),
    ],
)
def test_values_out_of_range(service: FakeService, server: Server, changes: dict[str, Any], param: str) -> None:
    response = post(server, "generate", msgspec.structs.replace(REQUEST, **changes))
    assert response.status_code == 400
    assert response.json()["error"]["param"] == param
    assert not service.requests


def test_a_wish_that_is_not_known_is_not_passed_over(server: Server) -> None:
    body = {"id": "", "model": "fake", "prompt": {"type": "text", "text": "x"}, "grammar": "root ::= [0-9]"}
    response = httpx2.post(server.url + "/edgellm/v1/generate", json=body, trust_env=False)
    assert (response.status_code, response.json()["error"]["param"]) == (400, "grammar")


def test_a_body_of_the_wrong_shape(server: Server) -> None:
    response = post(server, "generate", {"id": "", "model": "fake", "prompt": "hi"})
    assert response.status_code == 400
    assert response.json()["error"]["param"] == "prompt"


def test_ps_stop_version(service: FakeService, server: Server) -> None:
    models = httpx2.get(server.url + "/edgellm/v1/ps", trust_env=False).json()["models"]
    assert models == [msgspec.to_builtins(LOADED)]
    assert post(server, "stop", {"model": "fake"}).json() == {"stopped": True}
    assert service.stopped == ["fake"]
    assert post(server, "stop", {}).json()["error"]["param"] == "model"
    version = httpx2.get(server.url + "/edgellm/v1/version", trust_env=False).json()
    assert version == {"version": "0.1.0", "pid": os.getpid()}


def test_only_the_token_shuts_down(server: Server) -> None:
    assert post(server, "shutdown", {}).status_code == 401
    assert post(server, "shutdown", {}, "guess").status_code == 401
    assert server.shutdowns == 0
    assert post(server, "shutdown", {}, TOKEN).status_code == 202
    assert server.shutdowns == 1


def test_only_what_is_wanted_counts_as_activity(server: Server) -> None:
    front = server.app.state.front
    for path, counts in (
        ("/health", False),
        ("/metrics", False),
        ("/edgellm/v1/ps", True),
        ("/v1/models", True),
    ):
        front._last -= 1000
        httpx2.get(server.url + path, trust_env=False)
        assert (front.idle_s < 1000) is counts, path
