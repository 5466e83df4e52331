"""`edgellm logs`: the end of the daemon's log, or of a model's worker's."""

from __future__ import annotations

import contextlib
import os
import time
from pathlib import Path

from edgellm.cli.output import Output
from edgellm.errors import InvalidRequest, NotFound
from edgellm.library.store import Store
from edgellm.paths import Paths, default_paths
from edgellm.small_files import open_regular

_LOOK_S = 0.2  # between looks at a log that is followed
_TAIL = 1 << 20  # bytes


def show_log(name: str | None, *, lines: int, follow: bool, path: bool) -> None:
    """Print the last `lines` lines; `follow`: and what comes, until Ctrl+C. `path`: only where the log is."""
    if lines < 0:
        raise InvalidRequest("the number of lines cannot be below 0", param="lines")
    output = Output()
    log = _log(default_paths(), name)
    if path:
        output.line(str(log))
        return
    if not log.exists():
        whose = "the daemon" if name is None else name
        hint = "one that runs in the foreground (`edgellm serve`) writes to its own terminal" if name is None else None
        raise NotFound(f"there is no log of {whose} yet", hint=hint)
    if not log.stat().st_size:
        output.note(f"nothing is logged yet in {log}")
    with contextlib.closing(Tail(log)) as tail:
        for line in tail.last(lines):
            output.line(line)
        while follow:
            for line in tail.new():
                output.line(line)
            time.sleep(_LOOK_S)


class Tail:
    """A log file, read from near its end; a new one that takes its place is read from its beginning."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file = open_regular(path)
        self._rest = b""  # a line that is not whole yet

    def last(self, count: int) -> list[str]:
        """The last lines, at most a mebibyte of them."""
        size = self._path.stat().st_size
        self._file.seek(max(0, size - _TAIL))
        lines = self._lines()
        if self._rest:
            lines.append(self._text(self._rest))
            self._rest = b""
        return lines[-count:] if count else []

    def new(self) -> list[str]:
        """The lines that were written since."""
        lines = self._lines()
        with contextlib.suppress(OSError):  # none for a moment, while it is set aside
            if self._path.stat().st_ino != os.fstat(self._file.fileno()).st_ino:
                newer = open_regular(self._path)
                self._file.close()
                self._file = newer
                lines += self._lines()
        return lines

    def close(self) -> None:
        self._file.close()

    def _lines(self) -> list[str]:
        *whole, self._rest = (self._rest + self._file.read()).split(b"\n")
        return [self._text(line) for line in whole]

    def _text(self, line: bytes) -> str:
        return line.decode("utf-8", "replace").rstrip("\r")


def _log(paths: Paths, name: str | None) -> Path:
    return paths.daemon_log if name is None else paths.worker_log(str(Store(paths).resolve(name)))
