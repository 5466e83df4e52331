"""Where the app writes what must not happen, for those who look into it."""

from __future__ import annotations

import contextlib
import traceback
from pathlib import Path

from edgellm import platform
from edgellm.paths import Paths


def log_of(paths: Paths) -> Path:
    return paths.logs / "chat.log"


def record(paths: Paths, error: Exception) -> None:
    """Append the traceback to the log; where that cannot be written, nothing."""
    with contextlib.suppress(OSError), platform.open_private_log(log_of(paths)) as file:
        file.write("".join(traceback.format_exception(error)).encode("utf-8", "replace"))
