"""The daemon's process: one per user and home, from lock and socket to the last worker's end.

The order of the start is what a waiting user feels: the socket is bound, then the model's worker is started, and only
while that loads is the web framework imported. Connections made meanwhile wait in the kernel's queue.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import secrets
import socket
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

import msgspec

from edgellm import __version__, platform
from edgellm.client import DaemonClient, DaemonInfo, info_path, read_info
from edgellm.config import Settings, load_settings, told
from edgellm.errors import DaemonError, EdgeError, Interrupted
from edgellm.launch import unwritable
from edgellm.paths import Paths, default_paths
from edgellm.server import keys
from edgellm.server.binding import bind, is_daemon, refuse_open_door, url_of
from edgellm.service import Service

if TYPE_CHECKING:
    from edgellm.server.front import Front
    from edgellm.server.web import WebServer

logger = logging.getLogger(__name__)

DESCRIPTORS = 4096  # connections, workers' pipes, files
LOCK_S = 1.0  # `serve` waits so long for a daemon that is just leaving
PRELOAD_HEAD_START_S = 1.0  # the worker's start may hold up the web server's by this much
NOTICE_S = 1.0  # how often it is seen to that clients can find this daemon
RUNS = "programs can use it as it is; `edgellm stop --all` ends it"
FORCED_S = 8.0  # after a second signal, everything is over by then


def run_daemon(
    settings: Settings,
    paths: Paths,
    *,
    detached: bool,
    preload: str | None = None,
    on_ready: Callable[[str], None] | None = None,
) -> None:
    """Serve until told to stop, or, when `detached`, until nobody wanted anything for `idle_exit_s`.

    `preload` is loaded at once. `on_ready` gets the URL when requests are answered. Raises DaemonError when another
    daemon runs or the port is taken, ConfigError when the settings would let anybody in, Interrupted when a second
    signal cut off running answers. To be called on the main thread.
    """
    refuse_open_door(settings, _keyed(paths))  # before an idle daemon is asked to leave for nothing
    with _alone(settings, paths, detached):
        descriptors = platform.raise_descriptor_limit(DESCRIPTORS)
        listening = bind(settings, any_port=detached, keyed=_keyed(paths))
        own = told(settings) if detached else {}  # the others' are what somebody has just decided
        info = DaemonInfo(url_of(listening), os.getpid(), __version__, secrets.token_urlsafe(32), own)
        with contextlib.closing(listening), _announced(info, paths) as notice:
            daemon = Daemon(settings, paths, info, notice, detached, descriptors)
            asyncio.run(daemon.run(listening, preload=preload, on_ready=on_ready))


def _keyed(paths: Paths) -> bool:
    return bool(keys.stored(keys.path_of(paths)))


class Daemon:
    """What runs inside the event loop."""

    def __init__(
        self,
        settings: Settings,
        paths: Paths,
        info: DaemonInfo,
        notice: Notice,
        detached: bool,
        descriptors: int = DESCRIPTORS,
    ) -> None:
        """`descriptors`: how many files this process may open."""
        self._settings = settings
        self._paths = paths
        self._info = info
        self._notice = notice
        self._service = Service(settings, paths)
        self._detached = detached
        self._descriptors = descriptors
        self._ending = asyncio.Event()
        self._forced = asyncio.Event()
        self._signals = 0
        self._last_resort = threading.Timer(FORCED_S, os._exit, (1,))
        self._last_resort.daemon = True

    async def run(
        self,
        listening: socket.socket,
        *,
        preload: str | None,
        on_ready: Callable[[str], None] | None,
    ) -> None:
        loop = asyncio.get_running_loop()

        def notify() -> None:
            loop.call_soon_threadsafe(self._on_signal)

        with platform.end_signals(notify):
            try:
                if preload is not None:
                    await self._preload(preload)
                server, front = await asyncio.to_thread(self._build)
                serving = asyncio.create_task(server.serve(sockets=[listening]))
                await _started(server, serving)
                if on_ready is not None:
                    on_ready(self._info.url)
                await self._until_the_end(serving, front)
                await self._leave(server, serving, front)
            finally:
                await self._service.aclose(0.0)
                self._last_resort.cancel()
        if self._forced.is_set():
            raise Interrupted("stopped before all answers were complete")

    def _on_signal(self) -> None:
        """The first asks to finish, the second to stop now; what hangs even then is ended from outside the loop."""
        self._signals += 1
        self._ending.set()
        if self._signals == 2:
            self._forced.set()
            self._last_resort.start()

    async def _preload(self, name: str) -> None:
        """Get the worker going. A failure is for the request that follows to tell."""

        async def start() -> None:
            try:
                await self._service.preload(name)
            except EdgeError as error:
                logger.warning("%s cannot be loaded: %s", name, error.message)

        self._preloading = asyncio.create_task(start())
        await asyncio.wait({self._preloading}, timeout=PRELOAD_HEAD_START_S)

    def _build(self) -> tuple[WebServer, Front]:
        """On a thread: these imports take a third of a second."""
        from edgellm.server.app import build_app
        from edgellm.server.body import Limits, within
        from edgellm.server.security import Security
        from edgellm.server.web import web_server

        limits = within(self._descriptors, Limits())
        security = Security.of(self._settings, self._info.token, keys.path_of(self._paths))
        app = build_app(self._service, security, limits=limits, shutdown=self._ending.set, replaceable=self._detached)
        front: Front = app.state.front
        return web_server(app, limits), front

    async def _until_the_end(self, serving: asyncio.Task[None], front: Front) -> None:
        waits = [asyncio.ensure_future(self._ending.wait()), asyncio.ensure_future(self._notice.keep()), serving]
        if self._detached:
            waits.append(asyncio.ensure_future(_unused(front, self._settings.idle_exit_s)))
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                if wait is not serving:
                    wait.cancel()

    async def _leave(self, server: WebServer, serving: asyncio.Task[None], front: Front) -> None:
        """Refuse what is new, let what runs finish, then close everything."""
        self._notice.withdraw()  # nobody new shall come
        forced = asyncio.ensure_future(self._forced.wait())
        drained = asyncio.ensure_future(front.drain(self._settings.shutdown_grace_s))
        await asyncio.wait({forced, drained}, return_when=asyncio.FIRST_COMPLETED)
        for wait in (forced, drained):
            wait.cancel()
        await self._service.aclose(0.0)  # what still runs ends with an error its client can read
        server.should_exit = True
        await serving


async def _started(server: WebServer, serving: asyncio.Task[None]) -> None:
    while not server.started:
        if serving.done():
            serving.result()
            raise DaemonError("the web server ended as soon as it was started")
        await asyncio.sleep(0.005)


async def _unused(front: Front, idle_s: float) -> None:
    """Wait until nobody has wanted anything for so long."""
    while front.idle_s < idle_s:
        await asyncio.sleep(min(1.0, max(0.02, idle_s - front.idle_s)))
    logger.info("nobody wanted anything for %g s: leaving", idle_s)


@contextlib.contextmanager
def _alone(settings: Settings, paths: Paths, detached: bool) -> Iterator[None]:
    """Hold the lock that only one daemon can hold.

    A detached one has the patience to see a leaving one out; one in the foreground asks an idle detached one to leave.
    """
    from filelock import FileLock, Timeout

    lock = FileLock(str(paths.runtime / "daemon.lock"))
    try:
        platform.make_private_folder(paths.runtime)
        patience_s = settings.shutdown_grace_s + FORCED_S
        try:
            lock.acquire(timeout=patience_s if detached else LOCK_S)
        except Timeout:
            if detached or not _took_over(paths):
                raise
            lock.acquire(timeout=patience_s)
    except Timeout as error:
        info = read_info(paths)
        where = f" at {info.url} (pid {info.pid})" if info is not None else ""
        raise DaemonError(f"a daemon runs already{where}", hint=RUNS) from error
    except OSError as error:
        raise unwritable(paths.runtime, error) from error
    try:
        yield
    finally:
        lock.release()


def _took_over(paths: Paths) -> bool:
    """Whether the daemon that runs was in the background, had nothing to do, and now leaves."""
    client = DaemonClient.find(paths)
    if client is None:
        return False
    with client:
        if not client.make_way():
            return False
    logger.info("taking the place of an idle daemon in the background (pid %d)", client.info.pid)
    return True


class Notice:
    """daemon.json: where this daemon is, for clients."""

    def __init__(self, info: DaemonInfo, paths: Paths) -> None:
        self._info = info
        self._paths = paths

    def put_up(self) -> None:
        """Raises OSError."""
        platform.write_private(info_path(self._paths), msgspec.json.encode(self._info))

    def withdraw(self) -> None:
        path = info_path(self._paths)
        if read_info(self._paths) == self._info:
            path.unlink(missing_ok=True)

    async def keep(self) -> None:
        """Put it up again when it was cleared away or damaged: without it nobody finds, or can end, this daemon."""
        while True:
            await asyncio.sleep(NOTICE_S)
            found = read_info(self._paths)
            if found != self._info and not _is_another(found):
                with contextlib.suppress(OSError):
                    self.put_up()


def _is_another(found: DaemonInfo | None) -> bool:
    """Whether a notice is of another daemon that runs. Where the folder was cleared away, and the lock with it, there
    can be two: the newer keeps the place, or each would overwrite the other's notice as long as both run.
    """
    return found is not None and found.pid != os.getpid() and is_daemon(found.pid)


@contextlib.contextmanager
def _announced(info: DaemonInfo, paths: Paths) -> Iterator[Notice]:
    """daemon.json is there while the block runs, or until it is withdrawn."""
    notice = Notice(info, paths)
    try:
        notice.put_up()
    except OSError as error:
        raise unwritable(info_path(paths), error) from error
    try:
        yield notice
    finally:
        notice.withdraw()


def set_up_logging(settings: Settings) -> None:
    """Everything to stderr, which for a detached daemon is its log. Prompts and answers are never logged."""
    logging.basicConfig(
        level=settings.log_level.upper(),
        format="%(asctime)s %(levelname)s %(name)s: %(message)s",
        stream=sys.stderr,
    )
    for name in ("uvicorn", "httpx2"):  # the latter tells of every request to another daemon
        logging.getLogger(name).setLevel(logging.WARNING)


def main(arguments: Sequence[str] | None = None) -> int:
    """`python -m edgellm.server.daemon --detached [--settings JSON] [--preload NAME]`: how clients start one."""
    import argparse

    parser = argparse.ArgumentParser(prog="python -m edgellm.server.daemon")
    parser.add_argument("--detached", action="store_true")
    parser.add_argument("--settings", default="{}", help="settings given as flags, as a JSON object")
    parser.add_argument("--preload", metavar="MODEL")
    given = parser.parse_args(arguments)
    paths = default_paths()
    try:
        settings = load_settings(paths, msgspec.json.decode(given.settings, type=dict[str, object])).settings
        set_up_logging(settings)
        run_daemon(settings, paths, detached=given.detached, preload=given.preload)
    except EdgeError as error:
        hint = f"\nhint: {error.hint}" if error.hint else ""
        sys.stderr.write(f"error: {error.message}{hint}\n")
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
