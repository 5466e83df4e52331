"""What goes wrong on the network: trouble that may pass, and errors that say the way out.

`Trouble` stays inside this package: the download tries again, and turns the last one into an error when its patience
ends. Everything else is an EdgeError at once.
"""

from __future__ import annotations

import email.utils
import socket
import ssl
import time
from collections.abc import Callable, Iterator
from typing import Final, TypeVar

from edgellm.errors import DownloadFailed, EdgeError, Overloaded
from edgellm.library.staging import PullProgress, Report
from edgellm.units import seconds

_CERTIFICATES: Final = (
    "a proxy that opens connections signs with a certificate of its own: SSL_CERT_FILE=/path/to/ca.pem makes it trusted"
)
_LONGEST: Final = 200  # characters of a foreign message
_T = TypeVar("_T")


class Trouble(Exception):
    """Something that may pass: a cut, a stall, a server that is busy. `wait_s`: what the server asked for."""

    def __init__(self, message: str, *, wait_s: float | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.wait_s = wait_s


def patiently(
    call: Callable[[], _T],
    what: str,
    way_out: str,
    report: Report,
    *,
    tries: int,
    backoff_s: float,
    longest_wait_s: float,
) -> _T:
    """The answer of `call`, asked again after Trouble; `what` begins the message of the DownloadFailed at the end."""
    for count in range(1, tries + 1):
        try:
            return call()
        except Trouble as trouble:
            wait = trouble.wait_s if trouble.wait_s is not None else backoff_s * 2 ** (count - 1)
            if wait > longest_wait_s:
                raise too_busy(trouble, wait) from trouble
            if count == tries:
                raise DownloadFailed(f"{what}: {trouble.message}", hint=way_out) from trouble
            report(PullProgress("resolve", detail=f"{trouble.message}; trying again in {seconds(wait, whole=True)}"))
            time.sleep(wait)
    raise AssertionError("no tries")


def too_busy(trouble: Trouble, wait_s: float) -> Overloaded:
    """The error for a server that asks to wait longer than a command should."""
    return Overloaded(
        trouble.message,
        hint=f"try again in {seconds(wait_s, whole=True)}; what has arrived is kept",
        retry_after=wait_s,
    )


def network_fault(error: Exception, host: str) -> Trouble | EdgeError:
    """What an exception of the HTTP library means."""
    chain = list(_chain(error))
    name = type(error).__name__
    for each in chain:
        if isinstance(each, ssl.SSLCertVerificationError):
            why = getattr(each, "verify_message", "") or str(each)
            return DownloadFailed(f"the certificate of {host} is not trusted here: {why}", hint=_CERTIFICATES)
        if isinstance(each, ssl.SSLError) and "WRONG_VERSION_NUMBER" in str(each):
            return DownloadFailed(
                f"{host} does not speak TLS there", hint="check the address and its port, and HTTPS_PROXY if one is set"
            )
        if isinstance(each, socket.gaierror):
            return Trouble(f"the name {host} cannot be resolved ({each.strerror or each})")
    if name == "ProxyError":
        return Trouble(f"the proxy refuses the connection to {host} ({said(error)})")
    if name == "UnsupportedProtocol":
        return DownloadFailed(f"cannot fetch from {host}: {said(error)}", hint="addresses begin with https://")
    if name in ("ConnectTimeout", "PoolTimeout"):
        return Trouble(f"{host} does not answer")
    if name == "ReadTimeout":
        return Trouble(f"{host} stopped sending")
    refused = next((each for each in chain if isinstance(each, OSError) and each.strerror), None)
    return Trouble(f"the connection to {host} broke ({refused.strerror if refused else said(error)})")


def retry_after(value: str | None) -> float | None:
    """Seconds that a Retry-After header asks to wait: a number or a date; None without a usable one."""
    if not value:
        return None
    text = value.strip()
    if text.isdigit():
        return float(min(int(text), 10**6))
    try:
        return max(0.0, email.utils.parsedate_to_datetime(text).timestamp() - time.time())
    except ValueError:
        return None


def said(error: Exception) -> str:
    """A foreign message in one printable, short line."""
    text = " ".join("".join(c if c.isprintable() else " " for c in str(error)).split()) or type(error).__name__
    return text if len(text) <= _LONGEST else text[: _LONGEST - 1] + "…"


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        yield error
        error = error.__cause__ or error.__context__
