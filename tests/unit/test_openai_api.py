"""/v1 through a real server: the official client, the bytes on the wire, errors, keep-alives, clients that vanish."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Iterator
from typing import Any

import httpx2
import openai
import pytest
from fake_service import HELLO, FakeService, Server, finish, quick, serving

from edgellm.contracts.events import Failed, Progress, ReasoningDelta, Slid, Started, TextDelta
from edgellm.errors import ContextExceeded, EdgeError, GenerationFailed, Overloaded, WorkerDied

USER: Any = [{"role": "user", "content": "hi"}]
START = Started(7, 3, 42)
HASTY = quick(hold_s=0.3, ping_s=0.1)  # pings and commits quickly, so that tests of both need not wait


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with serving(FakeService()) as running:
        yield running


@pytest.fixture
def client(server: Server) -> Iterator[openai.OpenAI]:
    with client_of(server) as client:
        yield client


def client_of(server: Server) -> openai.OpenAI:
    direct = httpx2.Client(trust_env=False)
    return openai.OpenAI(base_url=f"{server.url}/v1", api_key="unused", max_retries=0, timeout=60, http_client=direct)


def post(server: Server, path: str = "/v1/chat/completions", **fields: Any) -> httpx2.Response:
    body = {"model": "fake", "messages": USER} | fields
    return httpx2.post(server.url + path, json=body, trust_env=False, timeout=60)


def datas(response: httpx2.Response) -> list[Any]:
    """What the `data:` lines hold."""
    lines = [line.removeprefix("data: ") for line in response.text.split("\n") if line.startswith("data: ")]
    return [line if line == "[DONE]" else json.loads(line) for line in lines]


def test_a_chat(service: FakeService, client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(model="fake", messages=USER, temperature=0, seed=5)
    assert answer.id == service.requests[0].id
    assert answer.id.startswith("chatcmpl-")
    assert (answer.object, answer.model) == ("chat.completion", "fake:latest")
    assert answer.choices[0].message.role == "assistant"
    assert answer.choices[0].message.content == "Hello"
    assert answer.choices[0].finish_reason == "stop"
    assert answer.system_fingerprint == "fp_0123456789ab"
    assert abs(answer.created - time.time()) < 60
    usage = answer.usage
    assert usage is not None
    assert (usage.prompt_tokens, usage.completion_tokens, usage.total_tokens) == (7, 5, 12)
    assert usage.prompt_tokens_details is not None
    assert usage.prompt_tokens_details.cached_tokens == 3
    assert answer.model_extra is not None
    assert answer.model_extra["seed"] == 42
    assert answer.model_extra["timings"]["ttft_s"] == 0.11
    assert answer.model_extra["timings"]["tokens_per_s"] == 10.0


def test_a_streamed_chat(service: FakeService, client: openai.OpenAI) -> None:
    chunks = list(
        client.chat.completions.create(model="fake", messages=USER, stream=True, stream_options={"include_usage": True})
    )
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices) == "Hello"
    assert len({(chunk.id, chunk.created, chunk.model, chunk.system_fingerprint) for chunk in chunks}) == 1
    assert chunks[-1].choices == []
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.total_tokens == 12
    assert all(chunk.usage is None for chunk in chunks[:-1])


def test_the_wire_of_a_streamed_chat(service: FakeService, server: Server) -> None:
    response = post(server, stream=True)
    assert response.headers["content-type"].startswith("text/event-stream")
    *chunks, done = datas(response)
    assert done == "[DONE]"
    assert [chunk["choices"][0]["delta"] for chunk in chunks] == [
        {"role": "assistant", "content": ""},
        {"content": "Hel"},
        {"content": "lo"},
        {},
    ]
    assert [chunk["choices"][0]["finish_reason"] for chunk in chunks] == [None, None, None, "stop"]
    assert {chunk["object"] for chunk in chunks} == {"chat.completion.chunk"}
    assert all("usage" not in chunk for chunk in chunks)


def test_the_wire_with_usage(service: FakeService, server: Server) -> None:
    *chunks, usage, done = datas(post(server, stream=True, stream_options={"include_usage": True}))
    assert done == "[DONE]"
    assert all(chunk["usage"] is None for chunk in chunks)
    assert usage["choices"] == []
    assert usage["usage"]["prompt_tokens_details"] == {"cached_tokens": 3}


def test_completions(service: FakeService, client: openai.OpenAI) -> None:
    service.script = (START, TextDelta("Hel"), *finish("lo", "length"))
    answer = client.completions.create(model="fake", prompt="hi")
    assert answer.object == "text_completion"
    assert answer.id.startswith("cmpl-")
    assert (answer.choices[0].text, answer.choices[0].finish_reason) == ("Hello", "length")
    chunks = list(client.completions.create(model="fake", prompt="hi", stream=True))
    assert [chunk.choices[0].text for chunk in chunks] == ["Hel", "lo", ""]
    assert [chunk.choices[0].finish_reason for chunk in chunks] == [None, None, "length"]


def test_thoughts_are_a_field_of_their_own(service: FakeService, client: openai.OpenAI, server: Server) -> None:
    service.script = (START, ReasoningDelta("Let me"), ReasoningDelta(" see."), TextDelta("Hel"), *finish("lo"))
    message = client.chat.completions.create(model="fake", messages=USER).choices[0].message
    assert message.content == "Hello"
    assert message.model_extra == {"reasoning_content": "Let me see."}
    *chunks, _ = datas(post(server, stream=True))
    deltas = [chunk["choices"][0]["delta"] for chunk in chunks]
    assert deltas[1:3] == [{"reasoning_content": "Let me"}, {"reasoning_content": " see."}]
    assert deltas[3:] == [{"content": "Hel"}, {"content": "lo"}, {}]


def test_an_answer_without_thoughts_has_no_such_field(service: FakeService, server: Server) -> None:
    assert "reasoning_content" not in post(server).json()["choices"][0]["message"]


def test_what_was_left_out_is_said(service: FakeService, server: Server) -> None:
    service.script = (START, Slid(100), TextDelta("Hel"), Slid(20), *finish("lo"))
    assert post(server, context_overflow="slide").json()["dropped_tokens"] == 120
    assert datas(post(server, stream=True, context_overflow="slide"))[-2]["dropped_tokens"] == 120
    service.script = HELLO
    assert "dropped_tokens" not in post(server).json()


def test_line_separators_in_text_do_not_cut_events(service: FakeService, server: Server) -> None:
    service.script = (START, TextDelta("a\u2028b\u0085c\u2029d\r\ne é"), *finish(""))
    body = post(server, stream=True).content
    assert "\u2028".encode() not in body
    assert "\u0085".encode() not in body
    assert datas(post(server, stream=True))[1]["choices"][0]["delta"]["content"] == "a\u2028b\u0085c\u2029d\r\ne é"


def test_models(client: openai.OpenAI) -> None:
    (model,) = client.models.list().data
    assert (model.id, model.object, model.owned_by, model.created) == (
        "fake:latest",
        "model",
        "edgellm",
        1_700_000_000,
    )
    assert client.models.retrieve("fake").id == "fake:latest"
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("other")


def test_an_unknown_model(client: openai.OpenAI) -> None:
    for stream in (False, True):
        with pytest.raises(openai.NotFoundError) as caught:
            client.chat.completions.create(model="fke", messages=USER, stream=stream)
        assert (caught.value.code, caught.value.param) == ("model_not_found", "model")
        assert "did you mean fake?" in str(caught.value)


@pytest.mark.parametrize("name", ["../../etc/passwd", "/etc/passwd", "..\\x", "C:\\x", "\\\\host\\share", "a/../b"])
def test_case_07_names_that_are_paths(server: Server, name: str) -> None:
    response = post(server, model=name)
    assert response.status_code == 400
    assert response.json()["error"]["code"] == "invalid_name"


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("error", "status", "kind"),
    [
        (ContextExceeded("has 9,000 tokens; takes 8,192", param="messages"), 400, "invalid_request_error"),
        (Overloaded("full", retry_after=7.0), 429, "rate_limit_error"),
        (WorkerDied("the process died"), 503, "server_error"),
        (GenerationFailed("not finite"), 500, "server_error"),
    ],
)
def test_a_request_that_fails_before_its_first_word(
    service: FakeService, server: Server, error: EdgeError, status: int, kind: str, stream: bool
) -> None:
    service.script = (Progress("load", 0.1), START, Failed(error.info))
    response = post(server, stream=stream)
    assert response.status_code == status
    assert response.json() == {
        "error": {"message": error.message, "type": kind, "param": error.param, "code": error.code}
    }
    if status == 429:
        assert response.headers["retry-after"] == "7"
    if status >= 429:
        assert response.headers["x-should-retry"] == ("true" if error.retriable else "false")


def test_completions_name_their_own_field(service: FakeService, server: Server) -> None:
    service.script = (Failed(ContextExceeded("too long", param="messages").info),)
    response = httpx2.post(server.url + "/v1/completions", json={"model": "fake", "prompt": "x"}, trust_env=False)
    assert response.json()["error"]["param"] == "prompt"


def test_a_request_that_fails_in_the_middle(service: FakeService, server: Server, client: openai.OpenAI) -> None:
    service.script = (START, TextDelta("Hel"), Failed(WorkerDied("the process died").info))
    seen: list[object] = []
    with pytest.raises(openai.APIError, match="the process died") as caught:
        seen.extend(client.chat.completions.create(model="fake", messages=USER, stream=True))
    assert caught.value.code == "worker_died"
    response = post(server, stream=True)
    assert response.status_code == 200
    assert datas(response)[-1]["error"]["type"] == "server_error"


def test_an_answer_that_breaks_off_is_an_error(service: FakeService, server: Server) -> None:
    service.script = (START, TextDelta("Hel"))
    assert post(server).status_code == 500
    assert datas(post(server, stream=True))[-1]["error"]["message"] == "the answer broke off"


def test_a_long_load_is_kept_alive_and_then_fails_in_the_stream() -> None:
    service = FakeService((Progress("load", 0.1), 2.0, Failed(WorkerDied("the process died").info)))
    with serving(service, limits=HASTY) as server:
        response = post(server, stream=True)
    assert response.status_code == 200
    assert response.text.count(": ping\n\n") >= 2
    assert datas(response)[-1]["error"]["code"] == "worker_died"


def test_a_long_prefill_is_kept_alive() -> None:
    with serving(FakeService((START, 2.0, *finish("Hello"))), limits=HASTY) as server:
        response = post(server, stream=True)
        assert ": ping\n\n" in response.text
        assert datas(response)[-1] == "[DONE]"
        with client_of(server) as client:
            chunks = list(client.chat.completions.create(model="fake", messages=USER, stream=True))
    assert chunks[1].choices[0].delta.content == "Hello"


def test_request_ids(service: FakeService, server: Server) -> None:
    def sent(given: str) -> str:
        headers = {"x-request-id": given}
        return str(httpx2.get(server.url + "/v1/models", headers=headers, trust_env=False).headers["x-request-id"])

    assert sent("my-id_1.2:3") == "my-id_1.2:3"
    assert sent("<script>").startswith("req_")
    assert sent("x" * 129).startswith("req_")
    assert post(server, model="none").headers["x-request-id"].startswith("req_")


def test_errors_of_routes_have_the_same_shape(server: Server) -> None:
    missing = httpx2.get(server.url + "/v1/nothing", trust_env=False)
    wrong = httpx2.get(server.url + "/v1/chat/completions", trust_env=False)
    assert (missing.status_code, missing.json()["error"]["code"]) == (404, "not_found")
    assert (wrong.status_code, wrong.json()["error"]["code"]) == (405, "method_not_allowed")


def test_a_bad_body_is_a_400_not_a_422(server: Server) -> None:
    response = post(server, temperature="hot")
    assert response.status_code == 400
    assert response.json()["error"] == {
        "message": "temperature must be a number, not a string",
        "type": "invalid_request_error",
        "param": "temperature",
        "code": "invalid_request",
    }


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("script", [(Progress("load", 0.1), 30.0), (START, TextDelta("Hel"), 30.0)])
def test_case_18_a_client_that_vanishes_cancels_its_request(
    service: FakeService, server: Server, script: tuple[Any, ...], stream: bool
) -> None:
    service.script = script
    body = json.dumps({"model": "fake", "messages": USER, "stream": stream}).encode()
    head = "POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    head += f"Content-Length: {len(body)}\r\n\r\n"
    with socket.create_connection(("127.0.0.1", server.port)) as connection:
        connection.sendall(head.encode() + body)
        assert service.entered.wait(60)
        time.sleep(0.05)
        assert not service.closed
    gone = time.monotonic()
    while (not service.closed or server.app.state.front.running) and time.monotonic() < gone + 20:
        time.sleep(0.005)
    assert service.closed
    assert service.closed[0] - gone < 5  # the next ping, which would find it out too, comes after 10
    assert server.app.state.front.running == 0


def test_the_usual_script_is_played_to_its_end(service: FakeService, server: Server) -> None:
    service.script = HELLO
    post(server)
    assert service.closed == []
