"""WorkerProcess: one worker process, its pipes and its end. Knows frames and the greeting; what they mean is above.

Everything happens in callbacks of the event loop, so a worker costs the daemon no task of its own.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import BinaryIO, cast

from edgellm import __version__, platform
from edgellm.engine import protocol
from edgellm.engine.protocol import FromWorker, Hello, ProtocolError, Shutdown, ToWorker
from edgellm.errors import EdgeError, InvalidRequest, LoadFailed, WorkerDied

logger = logging.getLogger(__name__)

TAIL_BYTES = 8192  # of stderr, kept for error messages
LOG_BYTES = platform.LOG_BYTES  # of stderr written to the log file by one process
REAP_S = 5.0  # the kernel's time to take away a killed process
_SETTLE_S = 0.5  # between the two signs of an end: exit, and end of output


def worker_argv(*, embeds: bool = False) -> list[str]:
    """The command of a worker. -P: the folder the daemon happens to run in must not shadow any module."""
    return [sys.executable, "-P", "-m", "edgellm.engine.embedding_worker" if embeds else "edgellm.engine.worker"]


class WorkerLog:
    """What a worker writes to stderr: the end of it in memory, more of it in a file where one is given."""

    def __init__(self, path: Path | None) -> None:
        self._tail = bytearray()
        self._file = _open_log(path) if path is not None else None
        self._left = LOG_BYTES

    def write(self, data: bytes) -> None:
        self._tail += data
        del self._tail[:-TAIL_BYTES]
        if self._file is None:
            return
        try:
            self._file.write(data[: self._left])
        except OSError:  # a full disk must not end a model that works
            self.close()
            return
        self._left -= len(data)
        if self._left <= 0:
            self.close()

    @property
    def tail(self) -> str:
        return self._tail.decode("utf-8", "replace")

    @property
    def last_line(self) -> str:
        """The last line with anything on it, made fit for an error message."""
        lines = [line.strip() for line in self.tail.splitlines() if line.strip()]
        return "".join(c if c.isprintable() else " " for c in lines[-1])[:300] if lines else ""

    def close(self) -> None:
        if self._file is not None:
            with contextlib.suppress(OSError):
                self._file.close()
            self._file = None


class WorkerProcess(asyncio.SubprocessProtocol):
    """A worker from start to reaped. Whatever happens, `close` it.

    on_message    called with every message after a correct Hello (Hello included), until `ended`
    on_writable   called when the pipe takes more after having been full
    ended         its result says why the process is of no use any more; set once, at the earliest sign
    writable      False while the pipe is full: hold back what can wait
    """

    def __init__(
        self,
        model: str,
        on_message: Callable[[FromWorker], None],
        on_writable: Callable[[], None],
        log_path: Path | None = None,
    ) -> None:
        self.ended: asyncio.Future[EdgeError] = asyncio.get_running_loop().create_future()
        self.writable = True
        self.log = WorkerLog(log_path)
        self._model = model
        self._on_message = on_message
        self._on_writable = on_writable
        self._frames = protocol.FrameReader(FromWorker)
        self._greeted = False
        self._leaving = False  # its end is wanted
        self._gone = asyncio.Event()  # exited, reaped, pipes closed
        self._memory_kills = platform.memory_kills()  # before it: of others
        self._settling: asyncio.TimerHandle | None = None
        self._transport: asyncio.SubprocessTransport | None = None

    async def start(self, argv: Sequence[str], environment: Mapping[str, str] | None = None) -> None:
        """Start the command; `environment` is added to our own. Raises LoadFailed when the system refuses."""
        try:
            await asyncio.get_running_loop().subprocess_exec(
                lambda: self,
                *argv,
                env={**os.environ, **(environment or {})},
                start_new_session=True,  # Ctrl+C is for the daemon, which lets answers finish
                creationflags=platform.background_flags(),
            )
        except OSError as error:
            logger.error("no process could be started for %s: %s", self._model, error)
            raise LoadFailed(
                f"no process could be started for {self._model}: {error.strerror or type(error).__name__}",
                hint="`edgellm doctor` checks the installation",
            ) from error

    @property
    def pid(self) -> int | None:
        """The process id, once it is started."""
        return self._transport.get_pid() if self._transport is not None else None

    def suspended(self) -> bool:
        """Whether the system keeps it from running (SIGSTOP)."""
        return self.pid is not None and platform.pid_suspended(self.pid)

    def post(self, message: ToWorker) -> None:
        """Write a message. Never waits: look at `writable` first where the message is large and can wait.

        Raises InvalidRequest when it exceeds the frame limit. Nothing is written once the worker has ended.
        """
        try:
            frame = protocol.encode(message)
        except ProtocolError as error:
            raise InvalidRequest(f"the request is too large: {error}") from error
        pipe = self._pipe()
        if not self.ended.done() and pipe is not None and not pipe.is_closing():
            pipe.write(frame)

    def kill(self, error: EdgeError) -> None:
        """End it now. `ended` is set at once, whatever the process makes of it."""
        self._conclude(error)
        if self._transport is not None:
            with contextlib.suppress(ProcessLookupError, PermissionError):  # PermissionError: Windows, just ended
                self._transport.kill()

    async def close(self, polite_s: float = 0.0) -> None:
        """Ask it to exit, kill it after `polite_s` seconds, reap it and close the pipes. May be called again."""
        self._leaving = True
        try:
            if polite_s > 0 and self._transport is not None and not self.ended.done():
                self.post(Shutdown())
                await within(polite_s, self._gone)
        finally:
            self.kill(WorkerDied(f"{self._model} was unloaded"))
            if self._transport is not None:
                self._transport.close()
            self.log.close()
        if self._transport is not None and not await within(REAP_S, self._gone):
            logger.error("the killed process %s of %s does not go away", self.pid, self._model)

    # -- callbacks of the event loop ---------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.SubprocessTransport, transport)

    def pipe_data_received(self, fd: int, data: bytes) -> None:
        if fd == 2:
            self.log.write(data)
            return
        if self.ended.done():
            return
        try:
            for message in self._frames.feed(data):
                if not self._greeted:
                    self._greet(message)
                if self.ended.done():
                    return
                self._on_message(message)
        except ProtocolError as error:
            self.kill(WorkerDied(f"the process running {self._model} sent something unreadable ({error})"))

    def pause_writing(self) -> None:
        self.writable = False

    def resume_writing(self) -> None:
        self.writable = True
        self._on_writable()

    def pipe_connection_lost(self, fd: int, exc: Exception | None) -> None:  # noqa: ARG002
        if fd == 1:
            self._settle()

    def process_exited(self) -> None:
        self._settle()

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002
        """The process has exited and all pipes are read to their end: now the whole story is known."""
        self._conclude(self._died())
        self._gone.set()

    # -- the end -----------------------------------------------------------------------------------

    def _greet(self, message: FromWorker) -> None:
        self._greeted = True
        if not isinstance(message, Hello):
            self.kill(WorkerDied(f"the process started for {self._model} is not a worker of this program"))
        elif (message.protocol, message.version) != (protocol.PROTOCOL, __version__):
            self.kill(
                LoadFailed(
                    f"the worker for {self._model} is version {message.version} (protocol {message.protocol}), "
                    f"this daemon is {__version__} (protocol {protocol.PROTOCOL})",
                    hint="edgellm was upgraded while the daemon ran: stop the daemon and start it again",
                )
            )

    def _settle(self) -> None:
        """One sign of an end. A child of the worker may hold a pipe open for ever: the other is not waited for long.

        Two timers in a row: after the loop was held up, what waits in the pipes is read between them.
        """
        if self._settling is None and not self.ended.done():
            loop = asyncio.get_running_loop()

            def second() -> None:
                self._settling = loop.call_later(_SETTLE_S / 2, lambda: self.kill(self._died()))

            self._settling = loop.call_later(_SETTLE_S / 2, second)

    def _died(self) -> WorkerDied:
        """Its last words are for the log alone: they may hold anything, and the error goes to whoever asked."""
        code = self._transport.get_returncode() if self._transport is not None else None
        how = "closed its pipe" if code is None else f"died ({platform.death_of(code)})"
        if not self.ended.done() and self.log.last_line and not self._leaving:
            logger.warning("the process running %s %s; its last words: %s", self._model, how, self.log.last_line)
        if platform.killed_for_memory(code, self._memory_kills):  # of which no log says a word
            return WorkerDied(
                f"the process running {self._model} was killed, as the system does where memory runs out",
                hint="the model is being started again; close other programs, or have it take less (a smaller context)",
            )
        return WorkerDied(
            f"the process running {self._model} {how}",
            hint=f"the model is being started again: send the request once more; `edgellm logs {self._model}` says why",
        )

    def _conclude(self, error: EdgeError) -> None:
        if self._settling is not None:
            self._settling.cancel()
        if not self.ended.done():
            self.ended.set_result(error)

    def _pipe(self) -> asyncio.WriteTransport | None:
        if self._transport is None:
            return None
        return cast(asyncio.WriteTransport | None, self._transport.get_pipe_transport(0))


async def within(seconds: float, event: asyncio.Event) -> bool:
    """Whether `event` is set within that time."""
    try:
        async with asyncio.timeout(seconds):
            await event.wait()
    except TimeoutError:
        return False
    return True


def _open_log(path: Path) -> BinaryIO | None:
    """The log to append to; a long one is set aside first. None when it cannot be written."""
    try:
        return platform.open_private_log(path)
    except OSError as error:
        logger.warning("no log at %s: %s", path, error)
        return None
