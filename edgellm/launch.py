"""A daemon in the background: its command, its process, and why it did not come up."""

from __future__ import annotations

import contextlib
import json
import sys
from pathlib import Path

from edgellm import platform
from edgellm.config import Settings, load_settings
from edgellm.errors import DaemonError
from edgellm.paths import Paths
from edgellm.setting import SECRET
from edgellm.small_files import open_regular

_LOG_LINES = 5
_LEAST = 64 << 10  # bytes of free disk that a daemon needs for its small files


class Launched:
    """A daemon that was started, from now on a process of its own."""

    def __init__(self, paths: Paths, settings: Settings, preload: str | None) -> None:
        """Start it; it loads `preload` at once. Raises DaemonError."""
        self._log = paths.daemon_log
        self._written = self._log.stat().st_size if self._log.exists() else 0
        try:
            self.pid = platform.spawn_detached(daemon_argv(paths, settings, preload), self._log)
        except OSError as error:
            if error.filename in (str(paths.logs), str(self._log)):
                raise unwritable(paths.logs, error) from error
            raise DaemonError(f"the daemon cannot be started: {error}", hint="`edgellm doctor` says more") from error

    def failed(self, how: str) -> DaemonError:
        """What to say when it does not come up, with the end of what it wrote."""
        return DaemonError(f"the daemon {how}{_tail(self._log, self._written)}", hint=_where_to_look(self._log))


def daemon_argv(paths: Paths, settings: Settings, preload: str | None) -> list[str]:
    """The daemon reads file and environment itself; flags are handed on, but never keys: others can see them."""
    there = load_settings(paths, {}).settings
    given = {
        name: getattr(settings, name)
        for name in Settings.__struct_fields__
        if name not in SECRET and getattr(settings, name) != getattr(there, name)
    }
    argv = [sys.executable, "-P", "-m", "edgellm.server.daemon", "--detached"]
    if given:
        argv += ["--settings", json.dumps(given)]
    return [*argv, "--preload", preload] if preload else argv


def unwritable(folder: Path, error: OSError) -> DaemonError:
    """What to say when a folder of ours cannot be made or written to."""
    remedy = "free some space" if platform.disk_is_full(error) else "give this user the right to"
    return DaemonError(
        f"{folder} cannot be written to: {error.strerror or error}",
        hint=f"{remedy}, or set EDGELLM_HOME to another folder",
    )


def _where_to_look(log: Path) -> str:
    """A daemon that cannot write its log cannot say why it ended."""
    import shutil

    with contextlib.suppress(OSError):
        if shutil.disk_usage(log.parent).free < _LEAST:
            return f"the disk that {log.parent} is on is full: free some space"
    return f"its log is {log}"


def _tail(log: Path, start: int) -> str:
    """What the daemon that did not start had to say."""
    try:
        with open_regular(log) as file:
            file.seek(start)
            lines = file.read()[-8192:].decode("utf-8", "replace").split("\n")
    except OSError:
        return ""
    said = [line.removeprefix("error: ") for line in lines if line.strip()]
    if any(line.startswith("Traceback ") for line in said):
        said = said[-1:]  # the rest is for those who open the log
    return ":\n" + "\n".join(said[-_LOG_LINES:]) if said else ""
