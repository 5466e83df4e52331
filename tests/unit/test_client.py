"""DaemonClient: finding, starting and talking to a daemon."""

from __future__ import annotations

import asyncio
import errno
import itertools
import math
import os
import shutil
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import aclosing
from pathlib import Path

import msgspec
import pytest
from fake_service import HELLO, LOADED, TOKEN, FakeService, Server, serving

from edgellm import __version__, client, launch, platform
from edgellm.client import DaemonClient, DaemonInfo, info_path, read_info
from edgellm.config import Settings
from edgellm.contracts.events import Event, Failed, Started, TextDelta
from edgellm.contracts.request import GenerateRequest, Sampling, Text
from edgellm.errors import DaemonError, InvalidRequest, NotFound, Unavailable
from edgellm.paths import Paths

FAKE = Path(__file__).parent.parent / "fake_daemon.py"
REQUEST = GenerateRequest(id="", model="fake", prompt=Text("hi"))


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with serving(FakeService(), Settings(api_keys=("a-key",))) as running:
        yield running


def info_of(server: Server) -> DaemonInfo:
    return DaemonInfo(server.url, os.getpid(), __version__, TOKEN)


def announce(paths: Paths, info: DaemonInfo) -> None:
    platform.make_private_folder(paths.runtime)
    info_path(paths).write_bytes(msgspec.json.encode(info))


# -- finding -----------------------------------------------------------------------------------------


def test_no_file_no_daemon(paths: Paths) -> None:
    assert DaemonClient.find(paths) is None


def test_a_running_one_is_found_whatever_the_proxies(
    paths: Paths, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    announce(paths, info_of(server))
    with DaemonClient.find(paths) or pytest.fail("not found") as found:
        assert found.health()["status"] == "ok"


def test_stale_files_count_for_nothing(paths: Paths, server: Server) -> None:
    dead = subprocess.run([sys.executable, "-c", "import os; print(os.getpid())"], capture_output=True, check=True)
    info = info_of(server)
    for stale in (
        msgspec.structs.replace(info, pid=int(dead.stdout)),
        msgspec.structs.replace(info, pid=os.getppid()),  # alive, but somebody else
        msgspec.structs.replace(info, url="http://127.0.0.1:9"),
        msgspec.structs.replace(info, token="of another boot"),
        msgspec.structs.replace(info, url="http://[::1"),
        msgspec.structs.replace(info, token="no\nheader"),
    ):
        announce(paths, stale)
        assert DaemonClient.find(paths) is None
    info_path(paths).write_bytes(b"{half a file")
    assert DaemonClient.find(paths) is None


def test_another_version_says_how_to_end_it(paths: Paths, server: Server) -> None:
    announce(paths, msgspec.structs.replace(info_of(server), version="0.0.1"))
    with pytest.raises(DaemonError, match=r"0\.0\.1") as caught:
        DaemonClient.find(paths)
    assert "edgellm stop --all" in (caught.value.hint or "")
    with DaemonClient.find(paths, any_version=True) or pytest.fail("not found") as found:
        assert found.info.version == "0.0.1"


# -- talking -----------------------------------------------------------------------------------------


def test_events_arrive_as_they_were(service: FakeService, server: Server) -> None:
    with DaemonClient(info_of(server)) as daemon:
        assert tuple(daemon.generate(REQUEST)) == HELLO


def test_an_unknown_model_fails_like_any_other(service: FakeService, server: Server) -> None:
    with DaemonClient(info_of(server)) as daemon:
        (event,) = daemon.generate(msgspec.structs.replace(REQUEST, model="none"))
    assert isinstance(event, Failed)
    assert (event.error.code, event.error.hint) == ("not_found", "did you mean fake?")


@pytest.mark.parametrize(
    ("field", "request_"),
    [
        ("temperature", msgspec.structs.replace(REQUEST, sampling=Sampling(temperature=math.nan))),
        ("top_p", msgspec.structs.replace(REQUEST, sampling=Sampling(top_p=math.inf))),
        ("timeout_s", msgspec.structs.replace(REQUEST, timeout_s=math.nan)),
        ("keep_alive_s", msgspec.structs.replace(REQUEST, keep_alive_s=-math.inf)),
    ],
)
def test_numbers_that_json_has_not_are_no_silent_defaults(
    field: str, request_: GenerateRequest, service: FakeService, server: Server
) -> None:
    with DaemonClient(info_of(server)) as daemon:
        (event,) = daemon.generate(request_)
    assert isinstance(event, Failed)
    assert (event.error.code, event.error.param) == ("invalid_request", field)
    assert service.requests == []


def test_bytes_that_are_no_text_are_refused_by_name(service: FakeService, server: Server) -> None:
    with DaemonClient(info_of(server)) as daemon:
        (event,) = daemon.generate(msgspec.structs.replace(REQUEST, prompt=Text("gr\udcfcn")))
        assert isinstance(event, Failed)
        assert (event.error.code, r"\udcfc" in event.error.message) == ("invalid_request", True)
        with pytest.raises(InvalidRequest, match="no text"):
            daemon.stop("\udcff")


def test_closing_the_iterator_cancels(service: FakeService, server: Server) -> None:
    service.script = (Started(7, 0, 1), TextDelta("Hel"), 30.0)
    with DaemonClient(info_of(server)) as daemon:
        events = daemon.generate(REQUEST)
        assert list(itertools.islice(events, 2)) == [Started(7, 0, 1), TextDelta("Hel")]
        closed = time.monotonic()
        events.close()
        while not service.closed and time.monotonic() < closed + 25:
            time.sleep(0.005)
    assert service.closed[0] - closed < 5.0  # the next ping, which would find it out too, comes after 10


def test_an_event_loop_reads_the_same_stream(service: FakeService, server: Server) -> None:
    async def collect(request: GenerateRequest) -> list[Event]:
        with DaemonClient(info_of(server)) as daemon:
            return [event async for event in daemon.stream(request)]

    assert tuple(asyncio.run(collect(REQUEST))) == HELLO
    (unknown,) = asyncio.run(collect(msgspec.structs.replace(REQUEST, model="none")))
    assert isinstance(unknown, Failed)
    assert unknown.error.code == "not_found"
    (refused,) = asyncio.run(collect(msgspec.structs.replace(REQUEST, timeout_s=math.nan)))
    assert isinstance(refused, Failed)
    assert refused.error.param == "timeout_s"
    service.script = (Started(7, 0, 1), TextDelta("Hel"))
    *_, last = asyncio.run(collect(REQUEST))
    assert isinstance(last, Failed)
    assert last.error.code == client.DaemonGone.code


def test_cancelling_a_task_cancels_its_request_also_before_any_text(service: FakeService, server: Server) -> None:
    service.script = (30.0,)

    async def give_up() -> float:
        with DaemonClient(info_of(server)) as daemon:

            async def wait() -> None:
                async with aclosing(daemon.stream(REQUEST)) as events:
                    async for _ in events:
                        pass

            task = asyncio.create_task(wait())
            await asyncio.to_thread(service.entered.wait, 60)
            task.cancel()
            await asyncio.wait({task})
            return time.monotonic()

    cancelled = asyncio.run(give_up())
    while not service.closed and time.monotonic() < cancelled + 25:
        time.sleep(0.005)
    assert service.closed[0] - cancelled < 5.0


def test_a_stream_that_breaks_off_fails(service: FakeService, server: Server) -> None:
    service.script = (Started(7, 0, 1), TextDelta("Hel"))
    with DaemonClient(info_of(server)) as daemon:
        *_, last = daemon.generate(REQUEST)
    assert isinstance(last, Failed)
    assert last.error.retriable


def test_a_daemon_that_is_gone_fails(server: Server) -> None:
    with DaemonClient(msgspec.structs.replace(info_of(server), url="http://127.0.0.1:9")) as daemon:
        (event,) = daemon.generate(REQUEST)
        assert isinstance(event, Failed)
        assert event.error.message == "the connection to the daemon broke off"
        with pytest.raises(Unavailable):
            daemon.ps()


def test_ps_and_stop(service: FakeService, server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    with DaemonClient(info_of(server)) as daemon:
        assert daemon.ps() == [LOADED]
        assert daemon.stop("fake")

        async def stop(name: str) -> bool:
            raise NotFound(f"no model named {name}", hint="`edgellm list`")

        monkeypatch.setattr(service, "stop", stop)
        with pytest.raises(NotFound) as caught:
            daemon.stop("other")
        assert caught.value.hint == "`edgellm list`"


# -- starting ----------------------------------------------------------------------------------------


def fake_argv(seconds: float = 0.0) -> list[str]:
    return [sys.executable, str(FAKE), str(seconds), "--detached", "--settings", '{"port": 0}']


def test_two_clients_at_once_start_one_daemon(paths: Paths, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launch, "daemon_argv", lambda *_: fake_argv())
    found: list[DaemonClient] = []
    threads = [
        threading.Thread(target=lambda: found.append(DaemonClient.connect_or_start(paths, Settings())))
        for _ in range(2)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    try:
        assert len(found) == 2
        assert found[0].info == found[1].info == read_info(paths)
        assert found[0].info.pid != os.getpid()
        with DaemonClient.connect_or_start(paths, Settings()) as third:
            assert third.info == found[0].info
    finally:
        for connected in found[1:]:
            connected.close()
        assert found[0].shutdown(10)
    assert not info_path(paths).exists()
    assert DaemonClient.find(paths) is None


def test_a_start_that_fails_shows_the_end_of_the_log(paths: Paths, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launch, "daemon_argv", lambda *_: [*fake_argv()[:-1], '{"host": "0.0.0.0"}'])
    paths.logs.mkdir(parents=True)
    (paths.logs / "daemon.log").write_text("an older failure\n")
    with pytest.raises(DaemonError, match="did not start") as caught:
        DaemonClient.connect_or_start(paths, Settings())
    assert "no API key is set" in caught.value.message
    assert "older" not in caught.value.message
    assert "daemon.log" in (caught.value.hint or "")


@pytest.mark.parametrize("folder", ["run", "logs"])
def test_a_home_that_cannot_be_written_to(folder: str, home: Path, paths: Paths) -> None:
    home.mkdir()
    (home / folder).write_text("a file in its place")
    with pytest.raises(DaemonError, match=f"{folder} cannot be written to") as caught:
        DaemonClient.connect_or_start(paths, Settings())
    assert "EDGELLM_HOME" in (caught.value.hint or "")


def test_a_crash_at_the_start_shows_no_traceback(paths: Paths, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launch, "daemon_argv", lambda *_: [sys.executable, "-c", "import no_such_module"])
    with pytest.raises(DaemonError) as caught:
        DaemonClient.connect_or_start(paths, Settings())
    assert caught.value.message == ("the daemon did not start:\nModuleNotFoundError: No module named 'no_such_module'")


def test_a_daemon_that_is_killed_while_it_starts_is_not_waited_for(
    paths: Paths, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = """if True:
        import os, sys, edgellm.client as client
        from pathlib import Path
        from edgellm.platform import make_private_folder, write_private
        import msgspec
        path = Path(sys.argv[1])
        make_private_folder(path.parent)
        info = client.DaemonInfo("http://127.0.0.1:9", os.getpid(), "0", "token", {})
        write_private(path, msgspec.json.encode(info))
        os.abort()
    """
    monkeypatch.setattr(launch, "daemon_argv", lambda *_: [sys.executable, "-c", source, str(info_path(paths))])
    began = time.monotonic()
    with pytest.raises(DaemonError, match="the daemon did not start"):
        DaemonClient.connect_or_start(paths, Settings())
    assert time.monotonic() - began < client.START_S / 2


def test_flags_reach_the_daemon_and_keys_do_not(paths: Paths, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("EDGELLM_THREADS", raising=False)
    argv = launch.daemon_argv(paths, Settings(threads=3, api_keys=("secret",)), "smollm2")
    assert argv[argv.index("--settings") + 1] == '{"threads": 3}'
    assert argv[argv.index("--preload") + 1] == "smollm2"
    assert "secret" not in " ".join(argv)
    assert "--settings" not in launch.daemon_argv(paths, Settings(), None)


def test_a_full_disk_is_named(home: Path, paths: Paths, monkeypatch: pytest.MonkeyPatch) -> None:
    full = OSError(errno.ENOSPC, "No space left on device", str(paths.runtime))
    assert "free some space" in (launch.unwritable(paths.runtime, full).hint or "")
    monkeypatch.setattr(launch, "daemon_argv", lambda *_: [sys.executable, "-c", "raise SystemExit(1)"])
    monkeypatch.setattr(shutil, "disk_usage", lambda _: shutil._ntuple_diskusage(1 << 30, 1 << 30, 0))
    with pytest.raises(DaemonError, match="did not start") as caught:  # and it could not write why
        DaemonClient.connect_or_start(paths, Settings())
    assert "is full: free some space" in (caught.value.hint or "")


def test_a_daemon_that_hangs_is_named_with_what_ends_it(paths: Paths) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        announce(paths, DaemonInfo(f"http://127.0.0.1:{silent.getsockname()[1]}", os.getpid(), __version__, TOKEN))
        with pytest.raises(DaemonError, match="does not answer") as caught:
            DaemonClient.find(paths, patience_s=0.2)
    assert f"kill -9 {os.getpid()}" in (caught.value.hint or "")
