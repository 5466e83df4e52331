"""A model hub on the loopback: the API and the addresses that huggingface-hub asks for, files behind a redirect to
another origin, ranges, and every fault a network can add.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import re
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple
from urllib.parse import unquote, urlsplit

from gguf_files import Key, build, model_keys

COMMIT = "0123456789abcdef0123456789abcdef01234567"
_RANGE = re.compile(r"bytes=(\d+)-(\d+)")


def model(size: int, name: str = "Hub Model", *extra: Key, kind: int = 0) -> bytes:
    """A GGUF model of about `size` bytes whose weights are noise, so that a byte in the wrong place is seen."""
    rows = max(1, size // 4 // 64) if kind == 0 else max(1, size // 34)
    shape = (64, rows) if kind == 0 else (32, rows)
    data = bytearray(build(model_keys(name, *extra), (("token_embd.weight", kind, shape),)))
    noise = hashlib.shake_128(name.encode()).digest(rows * (256 if kind == 0 else 34))
    data[len(data) - len(noise) :] = noise
    return bytes(data)


class Seen(NamedTuple):
    """A request as a server got it."""

    origin: str  # "hub" or "files"
    path: str
    range: tuple[int, int] | None
    authorization: str | None


@dataclass
class Faults:
    """What goes wrong. Everything counts down or is asked for each answer; nothing is random."""

    ignore_ranges: bool = False
    cut_after: list[int] = field(default_factory=list)  # bytes after which one answer each is cut
    stall_after: list[int] = field(default_factory=list)  # bytes after which one answer each falls silent
    alter: Callable[[int, bytes], bytes] | None = None  # (offset, bytes) -> what is sent instead
    pause: Callable[[int, int], float] | None = None  # (start of the answer, position) -> seconds before each piece
    api: list[tuple[int, dict[str, str]]] = field(default_factory=list)  # refusals of the next API requests
    resolve: list[tuple[int, dict[str, str]]] = field(default_factory=list)  # of the next file requests to the hub
    files: list[tuple[int, dict[str, str]]] = field(default_factory=list)  # of the next requests to the files' host
    expired: set[str] = field(default_factory=set)  # signatures that the files' host refuses
    headers: Callable[[dict[str, str]], dict[str, str]] | None = None  # of the files' host, altered
    downgrade: bool = False


class Hub:
    """Two servers: the hub, and the host that its files are on. `repos` maps a repository to its files."""

    def __init__(self) -> None:
        self.repos: dict[str, dict[str, bytes]] = {}
        self.licences: dict[str, str] = {}
        self.gated: set[str] = set()
        self.token = ""  # that opens gated repositories
        self.faults = Faults()
        self.seen: list[Seen] = []
        self.signature = 0
        self.bytes = 0  # of files, sent so far
        self.piece = 1 << 13
        self.lock = threading.Lock()
        self.released = threading.Event()
        self.hub = _Server(self, _HubPages)
        self.files = _Server(self, _FilePages)

    def add(self, repo: str, files: dict[str, bytes], licence: str = "apache-2.0") -> None:
        self.repos[repo] = files
        self.licences[repo] = licence

    @property
    def sent(self) -> list[tuple[int, int] | None]:
        """The ranges that the files' host was asked for."""
        return [each.range for each in self.seen if each.origin == "files"]


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False

    def __init__(self, hub: Hub, pages: type[BaseHTTPRequestHandler]) -> None:
        super().__init__(("127.0.0.1", 0), pages)
        self.hub = hub

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def handle_error(self, request: Any, client_address: Any) -> None:
        pass  # clients that hang up are the point


class _Pages(BaseHTTPRequestHandler):
    server: _Server
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def note(self, origin: str) -> tuple[int, int] | None:
        found = _RANGE.fullmatch(self.headers.get("range", ""))
        wanted = (int(found[1]), int(found[2])) if found else None
        with self.server.hub.lock:
            self.server.hub.seen.append(Seen(origin, self.path, wanted, self.headers.get("authorization")))
        return wanted

    def refused(self, queue: list[tuple[int, dict[str, str]]]) -> bool:
        with self.server.hub.lock:
            refusal = queue.pop(0) if queue else None
        if refusal is None:
            return False
        self.answer(refusal[0], b"", refusal[1])
        return True

    def answer(self, status: int, body: bytes, headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        for name, value in {"Content-Length": str(len(body)), **(headers or {})}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        pass


class _HubPages(_Pages):
    def do_GET(self) -> None:
        self.note("hub")
        hub, path = self.server.hub, unquote(urlsplit(self.path).path)
        api = re.fullmatch(r"/api/models/([^/]+/[^/]+)(?:/revision/(.+))?", path)
        file = re.fullmatch(r"/([^/]+/[^/]+)/resolve/([^/]+)/(.+)", path)
        if path == "/api/models":
            self.answer(200, json.dumps([{"id": repo} for repo in hub.repos]).encode())
        elif api:
            if not self.refused(hub.faults.api):
                self.repository(api[1], api[2])
        elif file:
            if not self.refused(hub.faults.resolve):
                self.resolve(file[1], file[2], file[3])
        else:
            self.answer(404, b"")

    def repository(self, repo: str, revision: str | None) -> None:
        hub = self.server.hub
        if repo not in hub.repos:
            self.answer(401, b"", {"X-Error-Code": "RepoNotFound", "X-Error-Message": "Repository not found"})
            return
        if revision not in (None, "main", COMMIT):
            self.answer(404, b"", {"X-Error-Code": "RevisionNotFound"})
            return
        siblings = [
            {
                "rfilename": path,
                "size": len(data),
                "blobId": "0" * 40,
                "lfs": {"size": len(data), "sha256": hashlib.sha256(data).hexdigest(), "pointerSize": 134},
            }
            for path, data in hub.repos[repo].items()
        ]
        licence = hub.licences.get(repo, "")
        info = {"id": repo, "sha": COMMIT, "siblings": siblings, "tags": [f"license:{licence}"] if licence else []}
        self.answer(200, json.dumps(info | {"gated": "auto" if repo in hub.gated else False}).encode())

    def resolve(self, repo: str, revision: str, path: str) -> None:
        hub = self.server.hub
        data = hub.repos.get(repo, {}).get(path)
        if data is None:
            self.answer(404, b"", {"X-Error-Code": "EntryNotFound"})
        elif repo in hub.gated and self.headers.get("authorization") != f"Bearer {hub.token}":
            status = 403 if self.headers.get("authorization") else 401
            self.answer(status, b"", {"X-Error-Code": "GatedRepo", "X-Error-Message": "Access is restricted"})
        else:
            with hub.lock:
                hub.signature += 1
                signed = hub.signature
            host = hub.files.url if not hub.faults.downgrade else "ftp://127.0.0.1"
            self.answer(
                302,
                b"",
                {
                    "Location": f"{host}/{repo}/{path}?signature={signed}",
                    "X-Repo-Commit": COMMIT,
                    "X-Linked-Size": str(len(data)),
                    "X-Linked-Etag": f'"{hashlib.sha256(data).hexdigest()}"',
                },
            )


class _FilePages(_Pages):
    def do_GET(self) -> None:
        wanted = self.note("files")
        hub, parts = self.server.hub, urlsplit(self.path)
        _, owner, name, path = unquote(parts.path).split("/", 3)
        data = hub.repos.get(f"{owner}/{name}", {}).get(path)
        if self.refused(hub.faults.files):
            return
        if data is None or parts.query.removeprefix("signature=") in hub.faults.expired:
            self.answer(404 if data is None else 403, b"")
            return
        if hub.faults.ignore_ranges:
            wanted = None
        start, end = (wanted[0], min(wanted[1] + 1, len(data))) if wanted else (0, len(data))
        headers = {"Content-Length": str(end - start), "ETag": f'"{hashlib.md5(data).hexdigest()}"'}
        if wanted:
            headers["Content-Range"] = f"bytes {start}-{end - 1}/{len(data)}"
        if hub.faults.headers is not None:
            headers = hub.faults.headers(headers)
        self.send_response(206 if wanted else 200)
        for key, value in headers.items():
            self.send_header(key, value)
        self.end_headers()
        with contextlib.suppress(OSError):
            self.send_body(data, start, end)

    def send_body(self, data: bytes, start: int, end: int) -> None:
        hub = self.server.hub
        with hub.lock:
            cut = hub.faults.cut_after.pop(0) if hub.faults.cut_after else None
            stall = hub.faults.stall_after.pop(0) if hub.faults.stall_after else None
        for pos in range(start, end, hub.piece):
            if cut is not None and pos - start >= cut:
                self.close_connection = True
                self.connection.close()
                return
            if stall is not None and pos - start >= stall:
                hub.released.wait(60)
                self.close_connection = True
                return
            piece = data[pos : min(pos + hub.piece, end)]
            if hub.faults.alter is not None:
                piece = hub.faults.alter(pos, piece)
            if hub.faults.pause is not None:
                time.sleep(hub.faults.pause(start, pos))
            self.wfile.write(piece)
            with hub.lock:
                hub.bytes += len(piece)


@contextlib.contextmanager
def serving() -> Iterator[Hub]:
    """A hub that runs. Its address is `hub.hub.url`."""
    hub = Hub()
    threads = [
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
        for server in (hub.hub, hub.files)
    ]
    for thread in threads:
        thread.start()
    try:
        yield hub
    finally:
        hub.released.set()
        for server in (hub.hub, hub.files):
            server.shutdown()
            server.server_close()
        for thread in threads:
            thread.join()
