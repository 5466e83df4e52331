"""Request bodies: read within limits of size and time, decoded strictly, refused by the name of the field."""

from __future__ import annotations

import asyncio
import json
import math
import re
from collections.abc import Callable
from typing import Any, TypeVar

import msgspec
from starlette.requests import Request

from edgellm.errors import InvalidRequest
from edgellm.server.complaints import invalid
from edgellm.server.errors import ClientGone, Refusal

T = TypeVar("T")
_SURROGATE = re.compile("[\ud800-\udfff]")
_OTHER_FILES = 40  # a daemon with a few models loaded has about 20
PARSED_AT_ONCE = 1 << 18  # bytes; a few milliseconds
_SEARCHED = 1 << 20  # bytes of a malformed body that are worth a second look


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """What one connection may cost. Bytes and seconds."""

    body_bytes: int = 16 * 1024 * 1024
    bodies_bytes: int = 256 * 1024 * 1024  # all bodies at once, as far as they are large
    body_s: float = 30.0  # for the whole body to arrive
    header_s: float = 15.0  # for a whole request head to arrive
    header_bytes: int = 256 * 1024
    header_count: int = 100
    connections: int = 512  # at once; beyond that idle ones are closed, then new ones refused
    accepted: int = 64  # taken from the kernel's queue before any of them is counted
    write_s: float = 60.0  # a reader may pause this long
    hold_s: float = 15.0  # a stream's status waits this long for the first word, so that failures get theirs
    ping_s: float = 10.0  # silence after which a stream gets a keep-alive


def within(descriptors: int, limits: Limits) -> Limits:
    """`limits` for a process that may open so many files, of which workers, logs and libraries want some.

    Up to twice `connections` are open (the second half is being refused), and some rounds of `accepted` besides: those
    that the loop takes before it has told of the first. Without an open file left none could even be refused.
    """
    spare = max(0, descriptors - _OTHER_FILES)
    connections, accepted = max(1, spare // 4), max(1, spare // 16)
    return msgspec.structs.replace(
        limits, connections=min(limits.connections, connections), accepted=min(limits.accepted, accepted)
    )


async def read_body(request: Request, limits: Limits) -> bytes:
    """The whole body. Raises Refusal (413, 408) and ClientGone."""
    declared = request.headers.get("content-length", "")
    if declared.isdecimal() and int(declared) > limits.body_bytes:
        raise _too_large(limits)
    parts: list[bytes] = []
    size = 0
    try:
        async with asyncio.timeout(limits.body_s):
            while True:
                message = await request.receive()
                if message["type"] == "http.disconnect":
                    raise ClientGone
                part: bytes = message.get("body", b"")
                size += len(part)
                if size > limits.body_bytes:
                    raise _too_large(limits)
                parts.append(part)
                if not message.get("more_body", False):
                    return b"".join(parts)
    except TimeoutError as error:
        raise Refusal(408, "timeout", "the request's body took too long to arrive") from error


async def parsed(request: Request, limits: Limits, parse: Callable[[bytes], T]) -> T:
    """What `parse` makes of the body: a large one on another thread, so that everybody else's streams keep their pace.

    Hundreds of thousands of messages or ids take a tenth of a second and more. Raises as `read_body` and `parse` do.
    """
    body = await read_body(request, limits)
    if len(body) <= PARSED_AT_ONCE:
        return parse(body)
    return await asyncio.to_thread(parse, body)


def decode(body: bytes, kind: type[T]) -> T:
    """The body as a `kind`. Raises InvalidRequest naming the field; no value of the caller's is repeated."""
    try:
        return msgspec.json.decode(body, type=kind)
    except msgspec.ValidationError as error:
        if "got `float`" not in str(error):
            raise invalid(error, kind) from error
        return _decode_with_whole_floats(body, kind)
    except RecursionError as error:
        raise InvalidRequest("the body is nested too deeply") from error
    except (msgspec.DecodeError, UnicodeError) as error:
        if (blamed := _blamed(body)) is not None:
            path, complaint = blamed[0].encode(errors="replace").decode(), blamed[1]
            raise InvalidRequest(f"{path or 'the body'} {complaint}", param=path or None) from error
        what = f"not valid JSON: {error}" if body.strip() else "empty"
        raise InvalidRequest(f"the body is {what}") from error


def _decode_with_whole_floats(body: bytes, kind: type[T]) -> T:
    """JSON has one kind of number: 16.0 is as whole as 16, and some languages write it so."""
    try:
        return msgspec.convert(_whole(msgspec.json.decode(body)), kind, str_keys=True)
    except msgspec.ValidationError as error:
        raise invalid(error, kind) from error


def _whole(value: Any) -> Any:
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, list):
        return [_whole(item) for item in value]
    if isinstance(value, dict):
        return {key: _whole(item) for key, item in value.items()}
    return value


def _too_large(limits: Limits) -> Refusal:
    return Refusal(
        413, "payload_too_large", f"the request's body is larger than {limits.body_bytes:,} bytes, the limit"
    )


def _blamed(body: bytes) -> tuple[str, str] | None:
    """Where and what: NaN, an infinity, half a surrogate pair. JSON knows none of them, but many clients write them."""
    if len(body) > _SEARCHED:
        return None
    try:
        tree = json.loads(body)
    except (ValueError, RecursionError):
        return None
    todo: list[tuple[str, Any]] = [("", tree)]
    while todo:
        path, value = todo.pop()
        if isinstance(value, float) and not math.isfinite(value):
            return path[:200], "must be a finite number"
        if isinstance(value, str) and _SURROGATE.search(value):
            return path[:200], "has half a surrogate pair, which is no character"
        if isinstance(value, dict):
            if any(map(_SURROGATE.search, value)):
                return path[:200], "has a name in it with half a surrogate pair, which is no character"
            todo.extend((f"{path}.{key}" if path else str(key), item) for key, item in value.items())
        elif isinstance(value, list):
            todo.extend((f"{path}[{index}]", item) for index, item in enumerate(value))
    return None
