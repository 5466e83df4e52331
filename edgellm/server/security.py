"""Who may call: the one check at the ASGI root, before any route. What is not allowed here is refused.

Host       an allow-list on every bind address, so that no web page reaches the server through a name of its own
           (DNS rebinding)
Origin     pages of other origins are refused unless they are listed; without that there are no CORS headers at all
Type       a body must be declared as JSON: anything else a page could send without asking first (CSRF)
Keys       Bearer or x-api-key; compared as hashes, in constant time; every route but /health
Head       the number and size of headers
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import logging
import re
import secrets
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import unquote, urlsplit

import msgspec
from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from edgellm.config import Settings
from edgellm.errors import SEE_LOGS, ConfigError, ErrorInfo, Forbidden, Overloaded, Unauthorized
from edgellm.server.binding import is_address, is_loopback, refuse_open_door
from edgellm.server.body import Limits
from edgellm.server.errors import error_response
from edgellm.server.keys import KeyRing, hashed, stored

logger = logging.getLogger(__name__)

OPEN_PATHS = frozenset({"/health"})
_INTERNAL = ErrorInfo("internal_error", "something went wrong in the daemon", SEE_LOGS)
_ALWAYS = {"x-content-type-options": "nosniff", "cross-origin-resource-policy": "same-origin"}
_AGAIN = "send it again in a moment"
_SMALL_BODY = 64 * 1024  # bytes that any request may bring, however many large ones there are
_REQUEST_ID = re.compile(r"[A-Za-z0-9._:-]{1,128}")
_HOST_NAME = re.compile(r"\w(?:[\w.-]*[\w.])?")  # also what only a local resolver knows, and other scripts
_HOST = re.compile(r"(\[[0-9a-fA-F:.]+\]|[^\[\]:@/\\\s]+)(?::\d{1,5})?")


class Security(msgspec.Struct, frozen=True):
    """What is allowed. Keys are kept as hashes only."""

    keys: KeyRing
    token: bytes  # SHA-256 of the daemon's own token, as good as a key, and needed to shut it down
    hosts: frozenset[str]  # names besides loopback names and IP literals, lower case
    origins: frozenset[str]

    @staticmethod
    def of(settings: Settings, token: str, key_file: Path | None = None) -> Security:
        """Raises ConfigError where the settings would leave the server open, or the key file cannot be trusted."""
        refuse_open_door(settings, key_file is not None and bool(stored(key_file)))
        for origin in settings.allowed_origins:
            if origin in ("*", "null"):
                raise ConfigError(
                    f"allowed_origins = {origin!r} would let any web page in",
                    hint="list the origins, such as https://chat.example.org",
                    param="allowed_origins",
                )
        for name in settings.allowed_hosts:
            if _HOST_NAME.fullmatch(name) is None:
                raise ConfigError(
                    f"allowed_hosts = {name!r} is not the name of a host, and would let nobody in",
                    hint="list whole names without scheme or port, such as box.example.org; addresses need none",
                    param="allowed_hosts",
                )
        hosts = {name.lower().rstrip(".") for name in settings.allowed_hosts}
        if not is_address(settings.host):
            hosts.add(settings.host.lower())
        return Security(
            keys=KeyRing.of(settings, key_file, always=not is_loopback(settings.host)),
            token=hashed(token),
            hosts=frozenset(hosts),
            origins=frozenset(origin.lower().rstrip("/") for origin in settings.allowed_origins),
        )

    def host_allowed(self, host: str | None) -> bool:
        """Whether a Host header names this machine: a loopback name, an address, or what is listed."""
        found = _HOST.fullmatch(host or "")
        if found is None:
            return False
        name = found.group(1).strip("[]").lower().removesuffix(".")
        return name == "localhost" or name.endswith(".localhost") or name in self.hosts or is_address(name)

    def origin_allowed(self, origin: str, host: str | None) -> bool:
        """Whether a page of that origin may call: it came from this server itself, or it is listed."""
        origin = origin.lower()
        if origin in self.origins:
            return True
        try:
            own = urlsplit(origin).netloc
        except ValueError:  # brackets that hold no address
            return False
        return host is not None and own == host.lower() != ""

    def key_known(self, headers: Headers) -> bool:
        """Whether the request carries an API key or the daemon's token."""
        offered = _credential(headers)
        if offered is None:
            return False
        # All are compared, so that the time tells nothing about which one came close.
        matches = [hmac.compare_digest(offered, known) for known in (*self.keys.hashes(), self.token)]
        return any(matches)

    def cache_key(self, headers: Headers) -> str:
        """Whose cached prompts a request may share: those of its own key. Without keys all callers are one.

        A prompt that is answered faster because someone else sent it before would tell what others ask.
        """
        offered = _credential(headers)
        return offered.hex()[:16] if self.keys.required() and offered is not None else ""

    def token_known(self, headers: Headers) -> bool:
        """Whether the request carries the token that this user's own programs read from daemon.json."""
        offered = _credential(headers)
        return offered is not None and hmac.compare_digest(offered, self.token)


class Guard:
    """The ASGI application around the application."""

    def __init__(
        self,
        app: ASGIApp,
        security: Security,
        limits: Limits,
        responded: Callable[[int], None] = lambda _: None,
        known: Callable[[Scope], bool] = lambda _: True,
    ) -> None:
        """`responded` gets the status of every response; `known` says whether anything is at a request's path."""
        self._app = app
        self._known = known
        self._security = security
        self._limits = limits
        self._responded = responded
        self._held = 0  # bytes of large bodies whose requests are under way

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return  # nothing else is served
        scope = _in_origin_form(scope)
        headers = Headers(scope=scope)
        extra = _ALWAYS | {"x-request-id": request_id(headers)}
        started = False

        async def send_marked(message: Message) -> None:
            nonlocal started
            if message["type"] == "http.response.start":
                started = True
                self._responded(message["status"])
                MutableHeaders(raw=message["headers"]).update(extra)
            await send(message)

        try:
            refusal = self._judged(scope, headers, extra)
            if refusal is not None:
                await refusal(scope, receive, send_marked)
                return
            scope.setdefault("state", {})["cache_key"] = self._security.cache_key(headers)
            with self._counted(receive) as receive_counted:
                await self._app(scope, receive_counted, send_marked)
        except Exception as error:
            _log_failure(extra["x-request-id"], error)
            if not started:  # else the connection is closed before the end of the body, which tells the client
                await error_response(_INTERNAL, scope["path"])(scope, receive, send_marked)

    def _judged(self, scope: Scope, headers: Headers, extra: dict[str, str]) -> Response | None:
        """The refusal, if it is refused; an origin that is allowed is added to the headers of the answer."""
        refusal = self._refusal(scope, headers)
        origin = headers.get("origin")
        if refusal is None and origin is not None:
            extra |= {"access-control-allow-origin": origin, "vary": "origin"}
            if scope["method"] == "OPTIONS":
                return _preflight()
        return refusal or self._key_refusal(scope, headers) or self._body_refusal(scope, headers)

    @contextlib.contextmanager
    def _counted(self, receive: Receive) -> Iterator[Receive]:
        """`receive`, which raises Overloaded when this request's body is one too many large ones."""
        size = held = 0

        async def receive_counted() -> Message:
            nonlocal size, held
            message = await receive()
            size += len(message.get("body", b""))
            if size - held > _SMALL_BODY:
                self._held += size - held
                held = size
                if self._held > self._limits.bodies_bytes:
                    raise Overloaded("the daemon holds as many large requests as it may", hint=_AGAIN, retry_after=1.0)
            return message

        try:
            yield receive_counted
        finally:
            self._held -= held

    def _refusal(self, scope: Scope, headers: Headers) -> Response | None:
        path = scope["path"]
        size = sum(len(name) + len(value) for name, value in scope["headers"])
        if len(scope["headers"]) > self._limits.header_count or size > self._limits.header_bytes:
            return error_response(ErrorInfo("headers_too_large", "too many or too large headers"), path, 431)
        host = headers.get("host")
        if not self._security.host_allowed(host):
            hint = "use localhost or an address, or list the name in allowed_hosts"
            return error_response(Forbidden("this Host is not allowed", hint=hint).info, path)
        origin = headers.get("origin")
        if origin is not None and not self._security.origin_allowed(origin, host):
            hint = "list it in allowed_origins to let its pages in"
            return error_response(Forbidden("this Origin is not allowed", hint=hint).info, path)
        return None

    def _key_refusal(self, scope: Scope, headers: Headers) -> Response | None:
        path = scope["path"]
        if not self._security.keys.required() or path in OPEN_PATHS or self._security.key_known(headers):
            return None
        error = Unauthorized("a valid API key is needed", hint="send it as Authorization: Bearer KEY, or as x-api-key")
        return error_response(error.info, path, headers={"www-authenticate": "Bearer"})

    def _body_refusal(self, scope: Scope, headers: Headers) -> Response | None:
        if scope["method"] not in ("POST", "PUT", "PATCH", "DELETE"):
            return None
        kind = headers.get("content-type", "").partition(";")[0].strip().lower()
        packed = headers.get("content-encoding", "").strip().lower() not in ("", "identity")
        if (kind == "application/json" and not packed) or not self._known(scope):
            return None  # or it is for the router to say that nothing is there
        hint = "send the header content-type: application/json; curl does with --json in place of -d"
        error = ErrorInfo("unsupported_media_type", "a request's body must be declared as JSON", hint)
        if packed:
            hint = "send it as it is, without content-encoding"
            error = ErrorInfo("unsupported_media_type", "a request's body must not be compressed", hint)
        return error_response(error, scope["path"], 415)


def _in_origin_form(scope: Scope) -> Scope:
    """A request whose target is a whole address, as proxies' clients send it, as if it named the path alone.

    The address' host counts then, and the header's does not (RFC 9112, 3.2.2).
    """
    raw: bytes = scope.get("raw_path", b"")
    if raw[:7].lower() != b"http://":
        return scope
    authority, slash, rest = raw[7:].partition(b"/")
    path = slash + rest or b"/"
    headers = [(b"host", authority), *(each for each in scope["headers"] if each[0] != b"host")]
    return {**scope, "raw_path": path, "path": unquote(path.decode("latin-1")), "headers": headers}


def _log_failure(request: str, error: Exception) -> None:
    """Where it happened. What the exception says may quote a prompt, so that is for a debug log only."""
    frames = "".join(traceback.format_tb(error.__traceback__))
    logger.error("request %s failed with %s\n%s", request, type(error).__name__, frames)
    logger.debug("request %s: %s", request, error)


def request_id(headers: Headers) -> str:
    """The client's own x-request-id where it is a plain token, else a new one."""
    given = headers.get("x-request-id", "")
    return given if _REQUEST_ID.fullmatch(given) else "req_" + secrets.token_hex(16)


def _credential(headers: Headers) -> bytes | None:
    scheme, _, value = headers.get("authorization", "").partition(" ")
    given = value.strip() if scheme.lower() == "bearer" else headers.get("x-api-key", "")
    # Header bytes are read as Latin-1; a key may be any UTF-8.
    return hashlib.sha256(given.encode("latin-1")).digest() if given else None


def _preflight() -> Response:
    """The answer to a browser that asks before it sends, for an origin that is allowed."""
    return Response(
        status_code=204,
        headers={
            "access-control-allow-methods": "GET, POST",
            "access-control-allow-headers": "authorization, content-type, x-api-key, x-request-id",
            "access-control-max-age": "600",
        },
    )
