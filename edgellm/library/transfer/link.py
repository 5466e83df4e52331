"""One remote file over HTTP: where its bytes are after redirects, and ranges of them.

A token goes to the origin it is for and to no other: redirects are followed here, one by one, and the header is added
only while scheme, host and port are the remote's own. The address that a redirect led to is kept for the next ranges
(hubs sign them for an hour) and asked for anew when it is refused.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

import msgspec

from edgellm import __version__
from edgellm.errors import ChecksumMismatch, DownloadFailed, EdgeError
from edgellm.library.transfer.faults import Trouble, network_fault, retry_after

if TYPE_CHECKING:
    import httpx2

MAX_REDIRECTS: Final = 8
CONNECT_S: Final = 15.0
_BUSY: Final = frozenset({408, 425, 429, 500, 502, 503, 504, 509, 520, 521, 522, 523, 524})
_STALE: Final = frozenset({400, 401, 403, 404, 410})  # what a signed address answers once it has expired
_CONTENT_RANGE: Final = re.compile(r"bytes (\d+)-(\d+)/(\d+|\*)")

Explain = Callable[["httpx2.Response"], EdgeError]


class Remote(msgspec.Struct, frozen=True):
    """A file somewhere else. `token` is for the origin of `url` alone."""

    url: str
    name: str  # as people know it, for messages
    size: int | None = None  # bytes, where it is known beforehand
    sha256: str | None = None
    token: str | None = None


class Probe(msgspec.Struct, frozen=True):
    """What a first request tells: the beginning of the file, its length, and whether ranges can be asked for."""

    data: bytes
    size: int
    ranged: bool
    etag: str


class NoRanges(Exception):
    """The server answers a range with the whole file."""


class Link:
    """Asks for the bytes of one remote. May be used from several threads."""

    def __init__(self, remote: Remote, explain: Explain, *, stall_s: float) -> None:
        import httpx2

        self.remote = remote
        self.ranged = True
        self.etag = ""  # of the first answer; every later one must have the same
        self._explain = explain
        self._lock = threading.Lock()
        self._home = httpx2.URL(remote.url)
        self._final: httpx2.URL | None = None
        timeout = httpx2.Timeout(connect=CONNECT_S, read=stall_s, write=stall_s, pool=None)
        limits = httpx2.Limits(max_connections=None, max_keepalive_connections=32)
        headers = {"User-Agent": f"edgellm/{__version__}", "Accept-Encoding": "identity"}
        self._http = httpx2.Client(timeout=timeout, limits=limits, headers=headers, follow_redirects=False)

    @property
    def host(self) -> str:
        """Where it is asked for, as people know it."""
        return self._home.netloc.decode("ascii", "replace")

    def close(self) -> None:
        self._http.close()

    def probe(self, count: int) -> Probe:
        """The first `count` bytes, or all of a shorter file. Raises Trouble, EdgeError."""
        with self._answer({"Range": f"bytes=0-{count - 1}"}) as response:
            ranged = response.status_code == 206
            if ranged:
                _, _, size = self._content_range(response)
            else:
                size = _length(response)
            if size is None:
                raise DownloadFailed(
                    f"{self.host} does not say how long {self.remote.name} is",
                    hint="fetch it with another program, then import the file: edgellm pull ./file.gguf",
                )
            self._require_size(size)
            self.ranged = ranged
            data = b"".join(_upto(self._pieces(response), min(count, size)))
        if len(data) < min(count, size):
            raise Trouble(f"the connection to {self.host} ended early")
        return Probe(data, size, ranged, self.etag)

    @contextmanager
    def open(self, start: int, end: int, size: int) -> Iterator[Iterator[bytes]]:
        """The bytes from `start` to `end` of a file of `size`, as they come; fewer when the connection breaks.

        Raises NoRanges when the whole file comes instead, Trouble, EdgeError.
        """
        whole = start == 0 and end == size
        with self._answer({} if whole else {"Range": f"bytes={start}-{end - 1}"}) as response:
            if response.status_code == 206:
                first, last, total = self._content_range(response)
                if first != start or last >= end or total not in (None, size):
                    raise Trouble(f"{self.host} sent bytes {first}-{last}/{total} instead of {start}-{end - 1}/{size}")
            elif start:
                raise NoRanges
            elif (length := _length(response)) not in (None, size):
                raise Trouble(f"{self.host} sent {length} bytes instead of {size}")
            yield _upto(self._pieces(response), end - start)

    # One answer

    @contextmanager
    def _answer(self, headers: dict[str, str]) -> Iterator[httpx2.Response]:
        """A response with contents, after redirects. Whatever fails inside is translated."""
        import httpx2

        try:
            response = self._send(headers)
            try:
                self._check(response)
                yield response
            finally:
                response.close()
        except (httpx2.HTTPError, httpx2.InvalidURL, httpx2.StreamError) as error:
            raise network_fault(error, self.host) from error

    def _send(self, headers: dict[str, str]) -> httpx2.Response:
        with self._lock:
            known = self._final
        response, url = self._follow(known or self._home, headers)
        if known is not None and response.status_code in _STALE:
            response.close()
            response, url = self._follow(self._home, headers)
        if response.status_code in (200, 206):
            with self._lock:
                self._final = url if url != self._home else None
        return response

    def _follow(self, url: httpx2.URL, headers: dict[str, str]) -> tuple[httpx2.Response, httpx2.URL]:
        for _ in range(MAX_REDIRECTS + 1):
            request = self._http.build_request("GET", url, headers=headers | self._credentials(url))
            response = self._http.send(request, stream=True)
            if not response.is_redirect or "location" not in response.headers:
                return response, url
            target = url.join(response.headers["location"])
            response.close()
            if url.scheme == "https" and target.scheme != "https":
                raise DownloadFailed(
                    f"{url.host} redirects {self.remote.name} to an address without encryption ({target.host})",
                    hint="nothing was fetched from there; a proxy may be interfering: try another network",
                )
            url = target
        raise DownloadFailed(f"{self.host} redirects {self.remote.name} in circles", hint="check the address")

    def _credentials(self, url: httpx2.URL) -> dict[str, str]:
        mine = (url.scheme, url.host, url.port) == (self._home.scheme, self._home.host, self._home.port)
        return {"Authorization": f"Bearer {self.remote.token}"} if self.remote.token and mine else {}

    def _check(self, response: httpx2.Response) -> None:
        status = response.status_code
        if status in _BUSY:
            wait = retry_after(response.headers.get("retry-after"))
            told = "asks to slow down (429)" if status == 429 else f"answers {status}"
            raise Trouble(f"{self.host} {told}", wait_s=wait if wait is not None else 5.0 if status == 429 else None)
        if status == 407:
            raise DownloadFailed(
                "the proxy wants to know who you are (407)", hint="HTTPS_PROXY=http://user:password@proxy:port"
            )
        if status not in (200, 206):
            response.read()
            raise self._explain(response)
        if response.headers.get("content-encoding", "identity").lower() not in ("", "identity"):
            raise Trouble(f"{self.host} sends {self.remote.name} compressed")
        self._require_same(response)

    def _require_same(self, response: httpx2.Response) -> None:
        etag = response.headers.get("etag", "")
        with self._lock:
            if not self.etag:
                self.etag = etag
        if self.etag and etag and etag != self.etag and not self.remote.sha256:
            raise ChecksumMismatch(f"{self.remote.name} changed on {self.host} meanwhile", hint="pull it again")

    def _require_size(self, size: int) -> None:
        expected = self.remote.size
        if expected is not None and size != expected:
            raise ChecksumMismatch(
                f"{self.remote.name} has {size:,} bytes on {self.host}; {expected:,} were announced",
                hint="a proxy or mirror may have altered it: try again, or another network",
            )

    def _content_range(self, response: httpx2.Response) -> tuple[int, int, int | None]:
        found = _CONTENT_RANGE.fullmatch(response.headers.get("content-range", "").strip())
        if found is None:
            raise Trouble(f"{self.host} does not say which bytes it sends")
        return int(found[1]), int(found[2]), None if found[3] == "*" else int(found[3])

    @staticmethod
    def _pieces(response: httpx2.Response) -> Iterator[bytes]:
        return response.iter_raw()


def _length(response: httpx2.Response) -> int | None:
    text = response.headers.get("content-length", "")
    return int(text) if text.isdigit() else None


def _upto(pieces: Iterator[bytes], count: int) -> Iterator[bytes]:
    """At most `count` bytes."""
    for data in pieces:
        if count <= 0:
            return
        yield data[:count]
        count -= len(data)
