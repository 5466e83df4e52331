"""DaemonClient: finds the daemon, or starts one, and talks to it. What the command line and the terminal app use.

The daemon tells where it is in `daemon.json` (readable by its user only): url, pid, version, token. A file whose
process is gone, or at whose address somebody else answers, counts for nothing.
"""

from __future__ import annotations

import math
import time
from collections.abc import AsyncGenerator, Generator, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from edgellm import __version__, platform
from edgellm.config import Settings
from edgellm.contracts.events import Event, Failed, Finished
from edgellm.contracts.request import GenerateRequest
from edgellm.contracts.status import LoadedModel
from edgellm.errors import UNREADABLE, DaemonError, EdgeError, ErrorInfo, InvalidRequest, Unavailable
from edgellm.launch import Launched, unwritable
from edgellm.paths import Paths
from edgellm.small_files import read_small

if TYPE_CHECKING:
    import httpx2

START_S = 30.0  # for a daemon to answer: Python may come from a slow disk
SILENCE_S = 30.0  # the daemon says something at least every ten seconds
ANSWER_S = 15.0  # for a running daemon to say its version, on a busy machine
GLANCE_S = 3.0  # the same, where nothing but a remark depends on it
GENERATE = "/edgellm/v1/generate"
_POLL_S = 0.01


class DaemonGone(Unavailable):
    """The daemon that was asked is not there any more; another can be started."""

    code = "daemon_gone"


class DaemonInfo(msgspec.Struct, frozen=True):
    """Where a daemon is. What daemon.json holds. `settings`: one's in the background, as text, without secrets."""

    url: str
    pid: int
    version: str
    token: str
    settings: dict[str, str] = {}


def info_path(paths: Paths) -> Path:
    return paths.runtime / "daemon.json"


def read_info(paths: Paths) -> DaemonInfo | None:
    """What daemon.json says, true or not; None when there is none."""
    try:
        return msgspec.json.decode(read_small(info_path(paths)), type=DaemonInfo)
    except (OSError, *UNREADABLE):
        return None


class DaemonClient:
    """A connection to a running daemon. Close it, or use it in a `with` block."""

    def __init__(self, info: DaemonInfo) -> None:
        import httpx2

        self.info = info
        self._errors: tuple[type[Exception], ...] = (httpx2.HTTPError, httpx2.StreamError)
        self._failures: tuple[type[Exception], ...] = (*self._errors, EdgeError)
        self._options: dict[str, Any] = {
            "base_url": info.url,
            "headers": {"authorization": f"Bearer {info.token}", "content-type": "application/json"},
            "timeout": SILENCE_S,
            "trust_env": False,  # a proxy set for the internet must not see, or break, what stays on this machine
        }
        self._http = httpx2.Client(**self._options)

    @classmethod
    def find(cls, paths: Paths, *, any_version: bool = False, patience_s: float = ANSWER_S) -> DaemonClient | None:
        """The running daemon; None when there is none.

        Raises DaemonError when it is of another version (unless `any_version`: enough to stop it) or does not answer.
        """
        return cls._open(read_info(paths), any_version, patience_s)

    @classmethod
    def _open(cls, info: DaemonInfo | None, any_version: bool, patience_s: float) -> DaemonClient | None:
        if info is None or not platform.pid_alive(info.pid):
            return None
        import httpx2

        try:
            client = cls(info)
        except (httpx2.InvalidURL, ValueError):  # a file that somebody has edited
            return None
        try:
            if not client._answers(patience_s):
                client.close()
                return None
            if info.version != __version__ and not any_version:
                raise DaemonError(
                    f"the running daemon is edgellm {info.version}, this is {__version__}",
                    hint="`edgellm stop --all` ends it; the next command starts the right one",
                )
        except BaseException:
            client.close()
            raise
        return client

    @classmethod
    def connect_or_start(cls, paths: Paths, settings: Settings, preload: str | None = None) -> DaemonClient:
        """The running daemon, or a new one in the background, which loads `preload` at once.

        Raises DaemonError with the last lines of its log when it does not start.
        """
        client = cls.find(paths)
        if client is not None:
            return client
        from filelock import FileLock, Timeout

        try:
            platform.make_private_folder(paths.runtime)
            # One of several clients starts it, the others find it when their turn comes.
            with FileLock(str(paths.runtime / "start.lock"), timeout=2 * START_S):
                return cls.find(paths) or cls._start(paths, settings, preload)
        except Timeout as error:
            raise DaemonError("another command is starting the daemon and does not finish") from error
        except OSError as error:
            raise unwritable(paths.runtime, error) from error

    @classmethod
    def _start(cls, paths: Paths, settings: Settings, preload: str | None) -> DaemonClient:
        launched = Launched(paths, settings, preload)
        import httpx2  # noqa: F401 - imported while the daemon starts

        deadline = time.monotonic() + START_S
        while time.monotonic() < deadline:
            if (client := cls._open(read_info(paths), False, START_S)) is not None:
                return client
            gone = not platform.pid_alive(launched.pid)
            if gone and ((info := read_info(paths)) is None or info.pid == launched.pid):  # killed, it leaves its file
                raise launched.failed("did not start")
            time.sleep(_POLL_S)
        raise launched.failed(f"did not answer within {START_S:.0f} s")

    # -- what it can be asked ----------------------------------------------------------------------

    def generate(self, request: GenerateRequest) -> Generator[Event, None, None]:
        """Stream an answer. Whatever goes wrong comes as `Failed`. Closing the iterator cancels the request."""
        events = _Events()
        try:
            with self._http.stream("POST", GENERATE, content=_encoded(request)) as response:
                if response.status_code != 200:
                    response.read()
                    yield Failed(_error(response))
                    return
                for chunk in response.iter_raw():
                    yield from events.feed(chunk)
                    if events.ended:
                        return
            raise self._gone(None)
        except self._failures as error:
            yield self._failed(error)

    async def stream(self, request: GenerateRequest) -> AsyncGenerator[Event, None]:
        """`generate` for an event loop: cancelling the task that waits here cancels the request, at any time."""
        import httpx2

        events = _Events()
        try:
            async with (
                httpx2.AsyncClient(**self._options) as http,
                http.stream("POST", GENERATE, content=_encoded(request)) as response,
            ):
                if response.status_code != 200:
                    await response.aread()
                    yield Failed(_error(response))
                    return
                async for chunk in response.aiter_raw():
                    for event in events.feed(chunk):
                        yield event
                    if events.ended:
                        return
            raise self._gone(None)
        except self._failures as error:
            yield self._failed(error)

    def ps(self) -> list[LoadedModel]:
        """The models in memory. Raises DaemonGone when the daemon is, as all that follow."""
        return msgspec.convert(self._ask("GET", "/edgellm/v1/ps")["models"], list[LoadedModel])

    def stop(self, model: str) -> bool:
        """Unload a model after its running answers; False when it was not loaded. Raises InvalidName, NotFound."""
        return bool(self._ask("POST", "/edgellm/v1/stop", {"model": model}, timeout=None)["stopped"])

    def health(self) -> dict[str, Any]:
        """status, version, and the models' states; also while it is ending."""
        return self._ask("GET", "/health", accept=(200, 503))

    def shutdown(self, wait_s: float = 20.0) -> bool:
        """Ask the daemon to end, its running answers first; whether it is gone within `wait_s` seconds."""
        self._ask("POST", "/edgellm/v1/shutdown", {})
        return self._ended(wait_s)

    def _ended(self, wait_s: float) -> bool:
        self.close()
        deadline = time.monotonic() + wait_s
        while platform.pid_alive(self.info.pid):
            if time.monotonic() > deadline:
                return False
            time.sleep(_POLL_S)
        return True

    def make_way(self, wait_s: float = 0.0) -> bool:
        """Ask a daemon in the background to end, unless it has something to do; whether it ends, within `wait_s`."""
        answer = self._ask("POST", "/edgellm/v1/shutdown", {"if_idle": True}, accept=(202, 409))
        return bool(answer.get("stopping")) and (not wait_s or self._ended(wait_s))

    def close(self) -> None:
        self._http.close()

    def __enter__(self) -> DaemonClient:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    # -- parts -------------------------------------------------------------------------------------

    def _answers(self, patience_s: float) -> bool:
        """Whether the daemon of that file is behind that address. Raises DaemonError where all is silence."""
        import httpx2

        try:
            found = self._http.get("/edgellm/v1/version", timeout=patience_s).json()
        except httpx2.TimeoutException as error:
            raise DaemonError(
                f"the daemon at {self.info.url} (pid {self.info.pid}) does not answer",
                hint=f"end it with `kill -9 {self.info.pid}`; the next command starts another",
            ) from error
        except self._errors:
            return False
        except ValueError:  # not JSON: somebody else
            return False
        return isinstance(found, dict) and found.get("pid") == self.info.pid

    def _ask(
        self,
        method: str,
        path: str,
        body: object = None,
        *,
        timeout: float | None = SILENCE_S,
        accept: tuple[int, ...] = (200, 202),
    ) -> dict[str, Any]:
        content = None if body is None else _json(body)
        try:
            response = self._http.request(method, path, content=content, timeout=timeout)
            if response.status_code not in accept:
                raise EdgeError.from_info(_error(response))
            found: dict[str, Any] = response.json()
        except self._errors as error:
            raise self._gone(error) from error
        except ValueError as error:
            raise DaemonError(f"the daemon at {self.info.url} answered with something unreadable") from error
        return found

    def _failed(self, error: Exception) -> Failed:
        return Failed((error if isinstance(error, EdgeError) else self._gone(error)).info)

    def _gone(self, error: Exception | None) -> DaemonGone:
        import httpx2

        # What else the library says of a lost connection is about HTTP; `--debug` shows it.
        why = f": {SILENCE_S:.0f} s of silence" if isinstance(error, httpx2.ReadTimeout) else ""
        return DaemonGone(
            f"the connection to the daemon broke off{why}",
            hint="try again: that starts a daemon",
        )


def _json(body: object) -> bytes:
    """Raises InvalidRequest for text that is none: bytes of another encoding, come in through the command line."""
    try:
        return msgspec.json.encode(body)
    except UnicodeEncodeError as error:
        raise InvalidRequest(
            f"there are bytes in it that are no text: {error.object[error.start : error.end][:20]!a}",
            hint="use a terminal, or a file, in UTF-8",
        ) from error


def _encoded(request: GenerateRequest) -> bytes:
    """As JSON. Raises InvalidRequest for NaN and infinity: JSON has neither and would leave them out."""
    values = {
        "temperature": request.sampling.temperature,
        "top_p": request.sampling.top_p,
        "timeout_s": request.timeout_s,
        "keep_alive_s": request.keep_alive_s,
    }
    for name, value in values.items():
        if value is not None and not math.isfinite(value):
            raise InvalidRequest(f"{name} must be a finite number", param=name)
    return _json(request)


class _Events:
    """The events in the pieces of a response; blank lines only keep it alive. `ended`: the last one was among them."""

    def __init__(self) -> None:
        self.ended = False
        self._decoder = msgspec.json.Decoder(Event)
        self._rest = b""

    def feed(self, chunk: bytes) -> Iterator[Event]:
        """The events that end in this piece. Raises DaemonError for what is none."""
        *lines, self._rest = (self._rest + chunk).split(b"\n")
        for line in filter(None, lines):
            if self.ended:
                return
            try:
                event = self._decoder.decode(line)
            except UNREADABLE as error:
                raise DaemonError(f"the daemon sent something unreadable: {error}") from error
            self.ended = isinstance(event, Finished | Failed)
            yield event


def _error(response: httpx2.Response) -> ErrorInfo:
    try:
        return msgspec.convert(response.json()["error"], ErrorInfo)
    except (ValueError, KeyError, TypeError, msgspec.ValidationError):
        return DaemonError(f"the daemon answered with status {response.status_code}").info
