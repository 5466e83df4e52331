"""Bodies are parsed where that holds nobody up."""

from __future__ import annotations

import asyncio
import json
import threading

import pytest
from starlette.requests import Request

from edgellm.contracts.request import GenerateRequest
from edgellm.errors import InvalidRequest
from edgellm.server.body import PARSED_AT_ONCE, Limits, decode, parsed
from edgellm.server.openai_bodies import ChatBody


async def thread_that_parses(size: int) -> threading.Thread:
    async def receive() -> dict[str, object]:
        return {"type": "http.request", "body": b"x" * size}

    def parse(body: bytes) -> threading.Thread:
        assert len(body) == size
        return threading.current_thread()

    return await parsed(Request({"type": "http", "headers": []}, receive), Limits(), parse)


def test_large_bodies_are_parsed_beside_the_event_loop() -> None:
    here = threading.current_thread()
    assert asyncio.run(thread_that_parses(PARSED_AT_ONCE)) is here
    assert asyncio.run(thread_that_parses(PARSED_AT_ONCE + 1)) is not here


def test_what_is_wrong_with_a_large_body_is_told() -> None:
    async def refuse() -> None:
        async def receive() -> dict[str, object]:
            return {"type": "http.request", "body": bytes(PARSED_AT_ONCE + 1)}

        def parse(_body: bytes) -> None:
            raise InvalidRequest("wrong")

        await parsed(Request({"type": "http", "headers": []}, receive), Limits(), parse)

    with pytest.raises(InvalidRequest, match="wrong"):
        asyncio.run(refuse())


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b"", "the body is empty"),
        (b" \n", "the body is empty"),
        (b'{"\\ud800": 1}', "the body has a name in it with half a surrogate pair, which is no character"),
        (b'{"a": [{"b\\udc00": 1}]}', r"a\[0\] has a name in it with half a surrogate pair, which is no character"),
        (b'{"a": ', "the body is not valid JSON: "),
    ],
)
def test_what_is_no_json_is_told_as_it_is(body: bytes, message: str) -> None:
    with pytest.raises(InvalidRequest, match=f"^{message}"):
        decode(body, dict[str, object])


@pytest.mark.parametrize(
    ("field", "value", "message", "param"),
    [
        ("temperature", "hot", "temperature must be a number, not a string", "temperature"),
        ("temperature", -1, "temperature must be a number from 0 to 2", "temperature"),
        ("top_p", 0, "top_p must be a number above 0 and at most 1", "top_p"),
        ("n", 1.5, "n must be a whole number, not a fraction", "n"),
        ("max_tokens", 0, "max_tokens must be a whole number from 1 to 2147483647", "max_tokens"),
        ("stop", 5, "stop must be a string or a list, not a whole number", "stop"),
        ("stop", ["x", ""], "stop[1] must be a string of at least 1 character", "stop[1]"),
        ("dry_breakers", ["x"] * 33, "dry_breakers must be a list of at most 32 entries", "dry_breakers"),
        ("messages", [{"role": 5}], "messages[0].role must be a string, not a whole number", "messages[0].role"),
        ("messages", {}, "messages must be a list, not an object", "messages"),
        ("logit_bias", {"four": 1}, "a name in logit_bias must be a whole number, not a string", "logit_bias"),
        ("logit_bias", {"4": 101}, "a value in logit_bias must be a number from -100 to 100", "logit_bias"),
        ("stream", "yes", "stream must be true or false, not a string", "stream"),
        ("context_overflow", "drop", "context_overflow must be error or slide", "context_overflow"),
        ("seed", 2**63, f"seed must be a whole number from {-(2**63)} to {2**63 - 1}", "seed"),
    ],
)
def test_a_field_is_told_what_it_may_be(field: str, value: object, message: str, param: str) -> None:
    body = {"model": "m", "messages": [{"role": "user", "content": "x"}], field: value}
    with pytest.raises(InvalidRequest) as caught:
        decode(json.dumps(body).encode(), ChatBody)
    assert (caught.value.message, caught.value.param) == (message, param)


@pytest.mark.parametrize(
    ("prompt", "message"),
    [
        ({"type": "poem"}, "prompt.type must be one of the allowed values"),
        (
            {"type": "messages", "messages": [{"role": "poet", "content": "x"}]},
            "prompt.messages[0].role must be assistant or system or tool or user",
        ),
    ],
)
def test_what_is_not_among_the_allowed_is_not_repeated(prompt: object, message: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        decode(json.dumps({"id": "", "model": "m", "prompt": prompt}).encode(), GenerateRequest)
    assert caught.value.message == message


def test_a_body_of_another_kind_is_told() -> None:
    with pytest.raises(InvalidRequest, match=r"^the body must be an object, not a list$"):
        decode(b"[]", ChatBody)
