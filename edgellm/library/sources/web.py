"""A file at a plain address. `#sha256=HEX` at its end says what it must be."""

from __future__ import annotations

import ipaddress
import re
from typing import TYPE_CHECKING, Final
from urllib.parse import unquote, urlsplit, urlunsplit

from edgellm.errors import DownloadFailed, EdgeError, Forbidden, InvalidRequest, NotFound, Unauthorized
from edgellm.library.transfer.link import Remote

if TYPE_CHECKING:
    import httpx2

_DIGEST: Final = re.compile(r"sha256[=:]([0-9a-fA-F]{64})")


def remote(address: str) -> Remote:
    """The remote at `address`. Raises InvalidRequest for what is no address, or not a safe one."""
    try:
        parts = urlsplit(address)
        host, _ = parts.hostname, parts.port
    except ValueError as error:
        raise InvalidRequest(f"{address} is not an address: {error}", hint=_example(), param="model") from error
    if parts.scheme not in ("https", "http") or not host:
        raise InvalidRequest(f"{address} is not an address of the web", hint=_example(), param="model")
    if parts.scheme == "http" and not _nearby(host):
        raise InvalidRequest(
            f"{host} would send the file without encryption, and anyone on the way could change it",
            hint=f"try https://{parts.netloc}…; http:// is for this machine and your own network",
            param="model",
        )
    found = _DIGEST.fullmatch(parts.fragment)
    if parts.fragment and found is None:
        raise InvalidRequest(
            f"#{parts.fragment} is not a digest", hint="write #sha256= and its 64 hexadecimal digits", param="model"
        )
    url = urlunsplit((parts.scheme, parts.netloc, parts.path or "/", parts.query, ""))
    return Remote(url, file_name(address), sha256=found[1].lower() if found else None)


def file_name(address: str) -> str:
    """The last part of an address's path."""
    return unquote(urlsplit(address).path).rstrip("/").rsplit("/", 1)[-1] or "file"


def shown(address: str) -> str:
    """An address without what may be secret in it: user, password, query."""
    parts = urlsplit(address)
    host = parts.hostname or ""
    place = f"{host}:{parts.port}" if parts.port else host
    return urlunsplit((parts.scheme, place, parts.path, "", ""))


def refusal(response: httpx2.Response) -> EdgeError:
    """What a status other than success means."""
    host, status = response.url.host, response.status_code
    if status == 401:
        return Unauthorized(f"{host} wants a user and a password (401)", hint="https://user:password@host/…")
    if status in (403, 451):
        return Forbidden(
            f"{host} refuses the file ({status})", hint="the address may have expired, or a filter be in between"
        )
    if status in (404, 410):
        return NotFound(f"{host} has no such file ({status})", hint="check the address", param="model")
    return DownloadFailed(f"{host} answers {status}", hint="check the address; try it in a browser")


def _nearby(host: str) -> bool:
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return host == "localhost" or host.endswith((".localhost", ".local"))
    return address.is_loopback or address.is_private or address.is_link_local


def _example() -> str:
    return "for example https://example.org/model.gguf"
