"""Bodies are parsed where that holds nobody up."""

from __future__ import annotations

import asyncio
import threading

import pytest
from starlette.requests import Request

from edgellm.errors import InvalidRequest
from edgellm.server.body import PARSED_AT_ONCE, Limits, decode, parsed


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
