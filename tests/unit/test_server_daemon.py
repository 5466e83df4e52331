"""The daemon's process from outside: lock, socket, daemon.json, signals, idle exit. Its service answers by script."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import json
import logging
import os
import signal
import socket
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest

from edgellm.client import DaemonInfo, info_path, read_info
from edgellm.config import Settings
from edgellm.errors import ConfigError, DaemonError
from edgellm.paths import Paths
from edgellm.platform import make_private_folder
from edgellm.server import daemon
from edgellm.server.binding import bind, is_ours, url_of
from edgellm.server.body import Limits
from edgellm.server.web import told_now_and_then, web_server

FAKE = Path(__file__).parent.parent / "fake_daemon.py"
CHAT: dict[str, Any] = {"model": "fake", "messages": [{"role": "user", "content": "hi"}]}
Start = Callable[..., subprocess.Popen[str]]

pytestmark = pytest.mark.skipif(os.name != "posix", reason="signals as POSIX has them")


@pytest.fixture
def start(home: Path) -> Iterator[Start]:
    """Start a daemon whose answers take `seconds`; all are gone when the test is over."""
    started: list[subprocess.Popen[str]] = []

    def start(
        seconds: float, *arguments: str, detached: bool = True, files: int | None = None, **settings: object
    ) -> subprocess.Popen[str]:
        argv = [sys.executable, str(FAKE), str(seconds), "--settings", json.dumps({"port": 0} | settings)]
        argv += ["--detached"] if detached else []
        if files is not None:
            argv = ["sh", "-c", f'ulimit -n {files}; exec "$@"', "sh", *argv]
        process = subprocess.Popen([*argv, *arguments], stderr=subprocess.PIPE, text=True)
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()


def announced(paths: Paths, process: subprocess.Popen[str]) -> DaemonInfo:
    """daemon.json, once it is there and requests are answered."""
    deadline = time.monotonic() + 60
    while (info := read_info(paths)) is None:
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.01)
    assert httpx2.get(info.url + "/health", trust_env=False, timeout=60).status_code == 200
    return info


def ended(process: subprocess.Popen[str], seconds: float = 60) -> int:
    return process.wait(seconds)


def leaving(paths: Paths) -> None:
    """Wait until the daemon has taken its leave."""
    deadline = time.monotonic() + 60
    while read_info(paths) is not None:
        assert time.monotonic() < deadline
        time.sleep(0.01)


def enough(paths: Paths) -> None:
    """Have the daemon finish the answers that it gives."""
    (paths.data / "enough").touch()


class Chat(threading.Thread):
    """A streamed chat in the background, with what came of it."""

    def __init__(self, info: DaemonInfo) -> None:
        super().__init__(daemon=True)
        self.url = info.url
        self.text = ""
        self.first_word = threading.Event()
        self.start()
        assert self.first_word.wait(60)

    def run(self) -> None:
        with httpx2.stream(
            "POST",
            self.url + "/v1/chat/completions",
            json=CHAT | {"stream": True},
            trust_env=False,
            timeout=60,
        ) as response:
            for part in response.iter_text():
                self.text += part
                if "Hel" in self.text:
                    self.first_word.set()


def test_case_17_sigterm_lets_running_answers_finish(start: Start, paths: Paths) -> None:
    process = start(60.0, "--preload", "fake", shutdown_grace_s=60)
    info = announced(paths, process)
    assert (info.pid, info.version) == (process.pid, "0.1.0")
    assert stat.S_IMODE(info_path(paths).stat().st_mode) == 0o600
    chat = Chat(info)
    process.send_signal(signal.SIGTERM)
    leaving(paths)  # nobody new shall come
    refused = httpx2.post(info.url + "/v1/chat/completions", json=CHAT, trust_env=False)
    assert (refused.status_code, refused.json()["error"]["code"]) == (503, "unavailable")
    health = httpx2.get(info.url + "/health", trust_env=False)
    assert (health.status_code, health.json()["status"]) == (503, "draining")
    enough(paths)
    assert ended(process) == 0
    chat.join(60)
    assert chat.text.endswith("data: [DONE]\n\n")


def test_answers_that_outlast_the_grace_end_with_an_error(start: Start, paths: Paths) -> None:
    process = start(60.0, shutdown_grace_s=0.3)
    chat = Chat(announced(paths, process))
    began = time.monotonic()
    process.send_signal(signal.SIGTERM)
    assert ended(process) == 0
    assert 0.25 < time.monotonic() - began < 20  # the answers would take 60
    chat.join(60)
    assert "unloaded before the answer was complete" in chat.text


def test_case_17_a_second_signal_does_not_wait(start: Start, paths: Paths) -> None:
    process = start(60.0, shutdown_grace_s=60)
    Chat(announced(paths, process))
    process.send_signal(signal.SIGINT)
    leaving(paths)
    assert process.poll() is None
    process.send_signal(signal.SIGINT)
    assert ended(process) == 130


def test_there_is_only_one(start: Start, paths: Paths) -> None:
    process = start(0.0, detached=False)
    info = announced(paths, process)
    other = start(0.0, detached=False)
    _, said = other.communicate(timeout=60)
    assert other.returncode == DaemonError.exit_code
    assert f"a daemon runs already at {info.url} (pid {info.pid})" in said
    assert "edgellm stop --all" in said
    assert read_info(paths) == info
    assert info.settings == {}


def test_one_in_the_background_tells_what_it_was_started_with_but_no_secrets(start: Start, paths: Paths) -> None:
    info = announced(paths, start(0.0, engine="torch", api_keys=["hush-hush-hush-hush"]))
    assert info.settings["engine"] == '"torch"'
    assert "hush" not in info_path(paths).read_text()


def test_one_in_the_foreground_takes_the_place_of_an_idle_one_in_the_background(start: Start, paths: Paths) -> None:
    idle = start(0.0)
    info = announced(paths, idle)
    time.sleep(1.0)
    process = start(0.0, detached=False)
    assert ended(idle) == 0
    assert (new := announced(paths, process)).pid == process.pid != info.pid
    process.send_signal(signal.SIGTERM)
    _, said = process.communicate(timeout=60)
    assert f"taking the place of an idle daemon in the background (pid {info.pid})" in said
    assert new.url.startswith("http://127.0.0.1:")


def test_but_not_of_one_that_answers(start: Start, paths: Paths) -> None:
    busy = start(60.0)
    info = announced(paths, busy)
    chat = Chat(info)
    other = start(0.0, detached=False)
    _, said = other.communicate(timeout=60)
    assert other.returncode == DaemonError.exit_code
    assert f"a daemon runs already at {info.url} (pid {info.pid})" in said
    assert "data: [DONE]" not in chat.text
    enough(paths)
    chat.join(60)
    assert chat.text.endswith("data: [DONE]\n\n")
    assert busy.poll() is None


@pytest.mark.parametrize("damage", [None, b"", b'{"url": "http://elsewhere", "pid": 1, "version": "0", "token": ""}'])
def test_a_notice_that_is_cleared_away_or_damaged_comes_back(damage: bytes | None, start: Start, paths: Paths) -> None:
    process = start(0.0, detached=False)
    info = announced(paths, process)
    info_path(paths).unlink()
    if damage is not None:
        info_path(paths).write_bytes(damage)
        deadline = time.monotonic() + 60
        while read_info(paths) != info:
            assert time.monotonic() < deadline
            time.sleep(0.05)
    assert announced(paths, process) == info
    process.send_signal(signal.SIGTERM)
    assert ended(process) == 0
    assert not info_path(paths).exists()


def test_a_home_that_cannot_be_written_to(start: Start, home: Path) -> None:
    home.mkdir()
    (home / "run").write_text("a file in its place")
    _, said = (process := start(0.0, detached=False)).communicate(timeout=60)
    assert process.returncode == DaemonError.exit_code
    assert f"{home / 'run'} cannot be written to" in said
    assert "hint: give this user the right to" in said


@pytest.mark.parametrize("runs", [True, False])
def test_a_notice_of_another_daemon_that_runs_is_left_alone(
    runs: bool, paths: Paths, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its lock was cleared away, too: else there would be no other."""

    class Enough(Exception):
        pass

    looks = iter(range(3))

    async def look(_: float) -> None:
        if next(looks, None) is None:
            raise Enough

    newer = DaemonInfo("http://127.0.0.1:2", os.getppid(), "1", "b")
    monkeypatch.setattr(asyncio, "sleep", look)
    monkeypatch.setattr(daemon, "is_daemon", lambda pid: runs and pid == newer.pid)
    own = daemon.Notice(DaemonInfo("http://127.0.0.1:1", os.getpid(), "1", "a"), paths)
    make_private_folder(paths.runtime)
    daemon.Notice(newer, paths).put_up()
    with pytest.raises(Enough):
        asyncio.run(own.keep())
    assert (read_info(paths) == newer) is runs


def test_a_detached_one_leaves_when_nobody_wants_anything(start: Start, paths: Paths) -> None:
    process = start(4.0, idle_exit_s=3.0)
    info = announced(paths, process)
    chat = Chat(info)  # longer than the limit: a running answer is no idleness
    chat.join(60)
    assert process.poll() is None
    assert chat.text.endswith("data: [DONE]\n\n")
    deadline = time.monotonic() + 60
    while process.poll() is None:
        assert time.monotonic() < deadline
        try:
            httpx2.get(info.url + "/health", trust_env=False)  # watching keeps nobody alive
        except httpx2.HTTPError:
            break
        time.sleep(0.05)
    assert ended(process) == 0
    assert not info_path(paths).exists()


def test_the_token_ends_it(start: Start, paths: Paths) -> None:
    process = start(0.0, detached=False)
    info = announced(paths, process)
    headers = {"authorization": f"Bearer {info.token}"}
    assert httpx2.post(info.url + "/edgellm/v1/shutdown", json={}, headers=headers, trust_env=False).status_code == 202
    assert ended(process) == 0


def test_open_doors_are_refused(start: Start, paths: Paths) -> None:
    process = start(0.0, detached=False, host="0.0.0.0")
    _, said = process.communicate(timeout=60)
    assert process.returncode == ConfigError.exit_code
    assert "no API key is set" in said
    assert "--api-key" in said
    assert read_info(paths) is None


def test_an_idle_daemon_stays_where_open_doors_are_refused(start: Start, paths: Paths) -> None:
    idle = announced(paths, start(60.0))
    process = start(0.0, detached=False, host="0.0.0.0")
    _, said = process.communicate(timeout=60)
    assert "no API key is set" in said
    assert "taking the place" not in said
    assert read_info(paths) == idle
    assert httpx2.get(idle.url + "/health", trust_env=False).json()["status"] == "ok"


# -- the socket --------------------------------------------------------------------------------------


def test_a_connection_that_is_used_again_is_as_fast_as_a_new_one(start: Start, paths: Paths) -> None:
    with httpx2.Client(base_url=announced(paths, start(0.0)).url, trust_env=False) as client:
        client.get("/health")
        took: list[float] = []
        for _ in range(8):
            began = time.monotonic()
            client.get("/health")
            took.append(time.monotonic() - began)
    assert min(took) < 0.03  # a delayed acknowledgement takes 0.04 s at least


def test_a_taken_port_names_who_has_it() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(DaemonError, match=rf"port {port} on 127.0.0.1 is taken by .*pid {os.getpid()}") as caught:
            bind(Settings(port=port), any_port=False)
        assert "--port" in (caught.value.hint or "")
        with bind(Settings(port=port), any_port=True) as other:
            assert other.getsockname()[1] != port


def test_a_port_taken_by_another_home_s_daemon_says_so(paths: Paths) -> None:
    argv = [sys.executable, "-m", "edgellm.server.daemon", "--detached", "--settings", '{"port": 0}']
    process = subprocess.Popen(argv, stderr=subprocess.PIPE, text=True)
    try:
        port = int(announced(paths, process).url.rpartition(":")[2])
        with pytest.raises(DaemonError, match=rf"an edgellm daemon of another home \(pid {process.pid}\)") as caught:
            bind(Settings(port=port), any_port=False)
        assert "EDGELLM_HOME" in str(caught.value.hint)
    finally:
        process.kill()
        process.communicate()


@pytest.mark.parametrize(
    ("command", "own"),
    [
        (["/usr/bin/python3", "/home/me/.local/bin/edgellm", "serve", "--port", "80"], True),
        (["python.exe", "edgellm.exe", "serve"], True),
        (["python3", "-P", "-m", "edgellm.server.daemon", "--detached"], True),
        (["python3", "-m", "http.server", "--directory", "/srv/edgellm"], False),
        ([], False),
    ],
)
def test_a_daemon_is_known_by_its_command_line(command: list[str], own: bool) -> None:
    assert is_ours(command) is own


def test_addresses_that_are_not_here() -> None:
    for host in ("192.0.2.1", "no-such-host.invalid", "x" * 300, "..", "\udcff"):
        with pytest.raises(ConfigError, match="cannot listen"):
            bind(Settings(host=host, port=0, api_keys=("k",)), any_port=False)


def test_urls_are_for_this_machine() -> None:
    with bind(Settings(host="0.0.0.0", port=0, api_keys=("k",)), any_port=False) as listening:
        assert url_of(listening) == f"http://127.0.0.1:{listening.getsockname()[1]}"


def _status(url: str) -> int | None:
    try:
        return int(httpx2.get(url, trust_env=False, timeout=60).status_code)
    except httpx2.TransportError:
        return None


def test_more_connections_than_there_may_be_open_files_are_told_so_at_once(paths: Paths, start: Start) -> None:
    process = start(0, files=64)
    info = announced(paths, process)
    health = info.url + "/health"
    with contextlib.ExitStack() as opened:
        for _ in range(200):  # who connect and say nothing
            opened.enter_context(socket.create_connection(("127.0.0.1", int(info.url.rpartition(":")[2])), timeout=60))
        try:
            assert httpx2.get(health, trust_env=False, timeout=60).status_code == 503
        except httpx2.TimeoutException:  # it would wait until those who say nothing are given up
            raise
        except httpx2.TransportError:  # closed, as those are that come when even the refused ones are many
            pass
    deadline = time.monotonic() + 60
    while (status := _status(health)) != 200 and time.monotonic() < deadline:  # until the daemon has seen that all left
        time.sleep(0.05)
    assert status == 200
    process.terminate()
    assert len(process.communicate(timeout=60)[1]) < 1000


def test_a_loop_that_can_accept_nobody_says_so_once_a_minute(caplog: pytest.LogCaptureFixture) -> None:
    full = {
        "message": "socket.accept() out of system resource",
        "exception": OSError(errno.EMFILE, "full"),
        "socket": 1,
    }
    handle = told_now_and_then()
    loop = asyncio.new_event_loop()
    with contextlib.closing(loop):
        for _ in range(1000):
            handle(loop, full)
        assert [record.exc_info for record in caplog.records] == [None]
        handle(loop, {"message": "another", "exception": ValueError("x")})
    assert len(caplog.records) == 2


def test_the_server_tells_its_loop_so(caplog: pytest.LogCaptureFixture) -> None:
    async def serve() -> None:
        async def app(scope: Any, receive: Any, send: Any) -> None: ...

        server = web_server(app, Limits())
        with socket.create_server(("127.0.0.1", 0)) as listening:
            serving = asyncio.create_task(server.serve(sockets=[listening]))
            while not server.started and not serving.done():
                await asyncio.sleep(0.01)
            full = {"message": "accept failed", "exception": OSError(errno.EMFILE, "full"), "socket": listening}
            for _ in range(1000):
                asyncio.get_running_loop().call_exception_handler(full)
            server.should_exit = True
            await serving

    asyncio.run(serve())
    assert [record.exc_info for record in caplog.records if record.levelno >= logging.WARNING] == [None]
