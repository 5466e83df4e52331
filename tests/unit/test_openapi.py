"""The OpenAPI document is whole and true: every route is in it, and the server behaves as it says."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import httpx2
import msgspec
import pytest
from described import Described, operations, violations
from fake_service import FakeService, Server, serving
from routes import routes_of

from edgellm.config import Settings
from edgellm.server.openapi import OPERATIONS, document


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with serving(FakeService()) as running:
        yield running


def test_every_route_is_described_and_nothing_else(server: Server) -> None:
    routes = {(method, re.sub(r":path}", "}", path)) for method, path in routes_of(server.app) if method != "HEAD"}
    assert routes == set(OPERATIONS)


def test_the_document_says_whether_a_key_is_needed(server: Server) -> None:
    open_door = httpx2.get(server.url + "/openapi.json", trust_env=False).json()
    assert open_door == json.loads(msgspec.json.encode(document(keys=False)))
    assert "security" not in str(open_door).lower()
    with serving(FakeService(), Settings(api_keys=("k",))) as locked:
        headers = {"authorization": "Bearer k"}
        closed = httpx2.get(locked.url + "/openapi.json", headers=headers, trust_env=False).json()
    secured = {path for path, methods in closed["paths"].items() for one in methods.values() if "security" in one}
    assert secured == set(closed["paths"]) - {"/health"}


def test_what_is_not_supported_yet_is_described_so() -> None:
    fields: dict[str, Any] = document(keys=False)["components"]["schemas"]["ChatBody"]["properties"]
    assert fields["tools"]["enum"] == [[], None]
    assert fields["grammar"]["enum"] == ["", None]


def patterns(node: Any) -> Iterator[str]:
    if isinstance(node, dict):
        for key, value in node.items():
            if key == "pattern" and isinstance(value, str):
                yield value
            yield from patterns(value)
    elif isinstance(node, list):
        for value in node:
            yield from patterns(value)


def test_what_a_pattern_allows_ends_where_it_says() -> None:
    """To some readers of JSON Schema a line end may follow `$`; the server takes none."""
    found = set(patterns(msgspec.to_builtins(document(keys=False))))
    assert len(found) >= 3
    assert [each for each in found if each.endswith("$") and not each.endswith(r"(?!\n)$")] == []


@pytest.mark.parametrize("operation", operations(), ids=str)
def test_the_server_keeps_to_the_document(server: Server, operation: Described) -> None:
    assert violations(server.url, operation, model="fake", examples=6) == []


def test_a_document_that_is_not_true_would_be_found_out(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    operation = Described("GET", "/v1/models/{name}")
    said = OPERATIONS[operation]
    monkeypatch.setitem(OPERATIONS, operation, msgspec.structs.replace(said, statuses=said.statuses - {404}))
    (found,) = violations(server.url, operation, model="fake", examples=30)
    assert found.startswith("UndefinedStatusCode 404")


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("operation", operations(), ids=str)
def test_the_server_keeps_to_the_document_for_long(server: Server, operation: Described) -> None:
    assert violations(server.url, operation, model="fake", examples=150) == []
