"""Errors as HTTP answers: OpenAI's shape under every path but the native API's, which carries `ErrorInfo` as it is."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
from starlette.responses import Response

from edgellm.errors import EdgeError, ErrorInfo

NATIVE_PREFIX = "/edgellm/"
_TYPES = {408: "timeout_error", 429: "rate_limit_error"}  # other 4xx: the caller's; 5xx: ours


class Refusal(Exception):
    """A refusal of HTTP's own, with a status that the tree of errors does not know (405, 413, 415, 431)."""

    def __init__(self, status: int, code: str, message: str, *, hint: str | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.info = ErrorInfo(code, message, hint)


class ClientGone(Exception):
    """The client hung up before its request was complete; nobody is left to answer."""


def status_of(info: ErrorInfo) -> int:
    """The HTTP status of an error that came as data."""
    return EdgeError.from_info(info).http_status


def openai_error(info: ErrorInfo, status: int) -> dict[str, Any]:
    """The body that OpenAI's clients understand. They show `message` alone, so the hint is part of it."""
    message = f"{info.message}; {info.hint}" if info.hint else info.message
    kind = _TYPES.get(status, "server_error" if status >= 500 else "invalid_request_error")
    return {"error": {"message": message, "type": kind, "param": info.param, "code": info.code}}


def error_response(
    info: ErrorInfo, path: str, status: int | None = None, headers: Mapping[str, str] | None = None
) -> Response:
    """The whole answer to a request that failed before anything was sent."""
    status = status_of(info) if status is None else status
    body = {"error": info} if path.startswith(NATIVE_PREFIX) else openai_error(info, status)
    return Response(
        msgspec.json.encode(body),
        status_code=status,
        headers={**_retry_headers(info, status), **(headers or {})},
        media_type="application/json",
    )


def _retry_headers(info: ErrorInfo, status: int) -> dict[str, str]:
    """When to come again. `x-should-retry` keeps OpenAI's clients from repeating what cannot get better."""
    if status < 500 and status not in (408, 429):
        return {}
    if not info.retriable:
        return {"x-should-retry": "false"}
    after = 1.0 if info.retry_after is None else info.retry_after
    return {"x-should-retry": "true", "retry-after": str(max(1, round(after)))}
