"""/v1/embeddings: OpenAI's shapes in and out, and what is refused."""

from __future__ import annotations

import base64
import struct
from collections.abc import Iterator
from typing import Any

import httpx2
import pytest
from fake_service import FakeService, Server, serving
from openai import BadRequestError, NotFoundError, OpenAI

from edgellm.contracts.events import Embedded, Failed, Finished, Progress, Timings, Usage
from edgellm.errors import ContextExceeded
from edgellm.server.embeddings import INPUTS


@pytest.fixture
def service() -> FakeService:
    return FakeService()


@pytest.fixture
def server(service: FakeService) -> Iterator[Server]:
    with serving(service) as server:
        yield server


@pytest.fixture
def client(server: Server) -> Iterator[OpenAI]:
    direct = httpx2.Client(trust_env=False)
    with OpenAI(base_url=server.url + "/v1", api_key="none", max_retries=0, http_client=direct) as client:
        yield client


def post(server: Server, **body: Any) -> httpx2.Response:
    return httpx2.post(server.url + "/v1/embeddings", json={"model": "fake", **body}, trust_env=False, timeout=60)


def test_the_official_client_gets_floats(client: OpenAI, service: FakeService) -> None:
    answer = client.embeddings.create(model="fake", input=["one", "two"])  # it asks for base64 and decodes
    assert [item.index for item in answer.data] == [0, 1]
    assert answer.data[1].embedding == pytest.approx([0.6, 0.8, 0.0])
    assert (answer.model, answer.object) == ("fake:latest", "list")
    assert (answer.usage.prompt_tokens, answer.usage.total_tokens) == (6, 6)
    assert service.embeddings[0].inputs == ("one", "two")


@pytest.mark.parametrize(
    ("given", "inputs"),
    [
        ("text", ("text",)),
        (["text"], ("text",)),
        ([1, 2, 3], ((1, 2, 3),)),
        ([[1, 2], [3]], ((1, 2), (3,))),
        (["text", [4, 5]], ("text", (4, 5))),
        (["x"] * INPUTS, ("x",) * INPUTS),
    ],
)
def test_inputs(given: Any, inputs: Any, server: Server, service: FakeService) -> None:
    assert post(server, input=given).status_code == 200
    assert service.embeddings[0].inputs == inputs


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({}, "input"),
        ({"input": None}, "input"),
        ({"input": ""}, "input"),
        ({"input": []}, "input"),
        ({"input": ["a", ""]}, "input[1]"),
        ({"input": ["a", []]}, "input[1]"),
        ({"input": ["a", None]}, "input[1]"),
        ({"input": ["a", 1]}, "input[1]"),
        ({"input": [1, -2]}, "input"),
        ({"input": [[1, 2.5]]}, "input[0][1]"),
        ({"input": [[True]]}, "input[0][0]"),
        ({"input": ["x"] * (INPUTS + 1)}, "input"),
        ({"input": "a", "encoding_format": "int8"}, "encoding_format"),
        ({"input": "a", "dimensions": 0}, "dimensions"),
        ({"input": "a", "dimensions": 2}, "dimensions"),
    ],
)
def test_what_is_refused_names_the_field(body: dict[str, Any], param: str, server: Server) -> None:
    answer = post(server, **body)
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == param


def test_both_formats_say_the_same(server: Server) -> None:
    floats = post(server, input="a", encoding_format="float", dimensions=3).json()["data"][0]["embedding"]
    coded = post(server, input="a", encoding_format="base64").json()["data"][0]["embedding"]
    assert struct.unpack("<3f", base64.b64decode(coded)) == struct.unpack("<3f", struct.pack("<3f", *floats))
    assert len(repr(floats[0])) <= 11  # 0.600000024, not 0.6000000238418579


def test_a_model_that_is_not_there(client: OpenAI) -> None:
    with pytest.raises(NotFoundError, match="no model named nobody"):
        client.embeddings.create(model="nobody", input="a")


def test_failures_come_with_their_status(client: OpenAI, service: FakeService, monkeypatch: pytest.MonkeyPatch) -> None:
    async def fail(request: object) -> Any:
        yield Progress("load", 0.5)
        yield Failed(ContextExceeded("text 0 has 600 tokens; fake takes at most 512", param="input").info)

    monkeypatch.setattr(service, "embed", fail)
    with pytest.raises(BadRequestError) as caught:
        client.embeddings.create(model="fake", input="long")
    assert (caught.value.code, caught.value.param) == ("context_length_exceeded", "input")


def test_metrics_count_them(client: OpenAI, server: Server, service: FakeService) -> None:
    client.embeddings.create(model="fake", input=["one", "two"])
    text = httpx2.get(server.url + "/metrics", trust_env=False).text
    assert 'edgellm_requests_total{model="fake:latest",outcome="embedded"} 1.0' in text
    assert 'edgellm_prompt_tokens_total{model="fake:latest"} 6.0' in text


def test_events_of_an_answer_may_come_late(
    client: OpenAI, service: FakeService, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def slow(request: object) -> Any:
        for done in (0.1, 0.9):
            yield Progress("load", done)
        yield Embedded(struct.pack("<2f", 1.0, 0.0), 2)
        yield Finished(Usage(1, 0), Timings(0.0, 0.0, 0.0, 0.0))

    monkeypatch.setattr(service, "embed", slow)
    assert client.embeddings.create(model="fake", input="a").data[0].embedding == [1.0, 0.0]
