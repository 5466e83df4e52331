"""The one tree of errors. A user sees message and hint, never a traceback.

    EdgeError
    ├── InvalidRequest             400  exit 2   the caller's input is wrong; `param` names the field
    │   ├── ContextExceeded        400           the prompt does not fit the model's context
    │   ├── InvalidName            400           not a model name
    │   └── ConfigError            400           a setting is unknown or out of range
    ├── Unauthorized               401  exit 4
    ├── Forbidden                  403  exit 4
    ├── NotFound                   404  exit 3   no such model
    ├── RequestTimeout             408  exit 5   the request's own deadline passed
    ├── Overloaded                 429  exit 5   queue full; `retry_after` in seconds
    ├── Unavailable                503  exit 5   try again later: loading, draining
    │   ├── WorkerDied             503           the process running the model died or hung; retriable
    │   └── InsufficientMemory     503           the model does not fit now
    ├── EngineUnavailable          501  exit 6   no installed engine runs this model
    ├── AppUnavailable             501  exit 6   the app is not installed, or cannot run here
    ├── LoadFailed                 500  exit 6   the engine refused the model file
    ├── GenerationFailed           500  exit 6   the model's output was unusable (NaN logits …)
    ├── LibraryError               500  exit 7   pulling, importing or reading a model failed
    │   ├── BadModelFile           400           malformed file: names file, field and value
    │   ├── ChecksumMismatch       502
    │   ├── DownloadFailed         502
    │   └── DiskFull               507
    ├── DaemonError                500  exit 8   the daemon cannot be started or reached
    └── Interrupted                499  exit 130 the user stopped it

`ErrorInfo` is the same as plain data: it crosses processes and HTTP; `EdgeError.from_info` brings it back.
Foreign exceptions are translated into this tree where they enter.
"""

from __future__ import annotations

import errno
import os
import sys
from typing import ClassVar, Final

import msgspec

# What msgspec raises for bytes that are not the JSON they should be: other encodings, and nesting without end, too.
UNREADABLE: Final = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)
SEE_LOGS = "`edgellm logs` says more, on the machine where the daemon runs"  # paths do not travel over HTTP


def pip_install(*arguments: str) -> str:
    """The command that installs into the environment that runs: a bare `pip` is another's where this is not active."""
    import shlex
    import shutil
    import subprocess

    found = shutil.which("pip")
    ours = found is not None and os.path.dirname(found) == os.path.dirname(sys.executable)  # noqa: PTH120
    words = [*(["pip"] if ours else [sys.executable, "-m", "pip"]), "install", *arguments]
    return subprocess.list2cmdline(words) if os.name == "nt" else shlex.join(words)


class ErrorInfo(msgspec.Struct, frozen=True, omit_defaults=True):
    """An error as data."""

    code: str
    message: str
    hint: str | None = None
    param: str | None = None
    retriable: bool = False
    retry_after: float | None = None


class EdgeError(Exception):
    """Base of every error this project raises on purpose."""

    code: ClassVar[str] = "internal_error"
    http_status: ClassVar[int] = 500
    exit_code: ClassVar[int] = 1
    retriable: ClassVar[bool] = False

    def __init__(
        self,
        message: str,
        *,
        hint: str | None = None,
        param: str | None = None,
        retry_after: float | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.param = param
        self.retry_after = retry_after

    @property
    def info(self) -> ErrorInfo:
        return ErrorInfo(self.code, self.message, self.hint, self.param, self.retriable, self.retry_after)

    @property
    def line(self) -> str:
        """Message and hint as one sentence, for a remark beside something that worked."""
        return f"{self.message}; {self.hint}" if self.hint else self.message

    @staticmethod
    def from_info(info: ErrorInfo) -> EdgeError:
        """The exception that `info` came from; an unknown code becomes a plain EdgeError."""
        kind = by_code().get(info.code, EdgeError)
        return kind(info.message, hint=info.hint, param=info.param, retry_after=info.retry_after)


class InvalidRequest(EdgeError):
    code = "invalid_request"
    http_status = 400
    exit_code = 2


class ContextExceeded(InvalidRequest):
    code = "context_length_exceeded"


class InvalidName(InvalidRequest):
    code = "invalid_name"


class ConfigError(InvalidRequest):
    code = "invalid_config"


class Unauthorized(EdgeError):
    code = "unauthorized"
    http_status = 401
    exit_code = 4


class Forbidden(EdgeError):
    code = "forbidden"
    http_status = 403
    exit_code = 4


class NotFound(EdgeError):
    code = "not_found"
    http_status = 404
    exit_code = 3


class RequestTimeout(EdgeError):
    code = "timeout"
    http_status = 408
    exit_code = 5


class Overloaded(EdgeError):
    code = "overloaded"
    http_status = 429
    exit_code = 5
    retriable = True


class Unavailable(EdgeError):
    code = "unavailable"
    http_status = 503
    exit_code = 5
    retriable = True


class WorkerDied(Unavailable):
    code = "worker_died"


class InsufficientMemory(Unavailable):
    code = "insufficient_memory"
    retriable = False


class EngineUnavailable(EdgeError):
    code = "engine_unavailable"
    http_status = 501
    exit_code = 6


class AppUnavailable(EdgeError):
    code = "app_unavailable"
    http_status = 501
    exit_code = 6


class LoadFailed(EdgeError):
    code = "load_failed"
    exit_code = 6


class GenerationFailed(EdgeError):
    code = "generation_failed"
    exit_code = 6


class LibraryError(EdgeError):
    code = "library_error"
    exit_code = 7


class BadModelFile(LibraryError):
    code = "bad_model_file"
    http_status = 400


class ChecksumMismatch(LibraryError):
    code = "checksum_mismatch"
    http_status = 502


class DownloadFailed(LibraryError):
    code = "download_failed"
    http_status = 502


class DiskFull(LibraryError):
    code = "disk_full"
    http_status = 507


class DaemonError(EdgeError):
    code = "daemon_error"
    exit_code = 8


class Interrupted(EdgeError):
    code = "interrupted"
    http_status = 499
    exit_code = 130


def by_code() -> dict[str, type[EdgeError]]:
    """The whole tree."""
    found: dict[str, type[EdgeError]] = {}
    todo = [EdgeError]
    while todo:
        kind = todo.pop()
        found[kind.code] = kind
        todo.extend(kind.__subclasses__())
    return found


_SHORT = ("failed to map segment", "cannot allocate memory")  # as linkers say it


def short_of_memory(error: BaseException) -> bool:
    """Whether the system gave no memory, in whatever words: a library that finds no room cannot be imported either."""
    if isinstance(error, OSError) and error.errno == errno.ENOMEM:
        return True
    return isinstance(error, MemoryError) or any(words in str(error).lower() for words in _SHORT)
