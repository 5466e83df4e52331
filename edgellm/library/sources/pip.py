"""Runs pip's own download, so that the user's mirrors, proxies, certificates and credentials apply."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections import deque
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final

from edgellm.errors import ChecksumMismatch, DiskFull, DownloadFailed, EdgeError
from edgellm.library.staging import PullProgress, Report

_PROGRESS: Final = re.compile(r"Progress (\d+) of (\d+)")
_RETRY: Final = re.compile(r"Retrying .*? after connection broken by '(.*)'")
_KEPT_LINES: Final = 200
_MIRROR: Final = "pip's settings apply: PIP_INDEX_URL=https://… names a mirror, HTTPS_PROXY a proxy"

# First match wins: (what pip's output says, the error, what went wrong in our words, what mends it).
_CAUSES: Final[tuple[tuple[str, type[EdgeError], str, str], ...]] = (
    (
        r"No module named '?pip",
        DownloadFailed,
        "pip is not installed beside edgellm",
        f"install it: {sys.executable} -m ensurepip --upgrade",
    ),
    (
        r"No space left on device|Errno 28|not enough space on the disk",
        DiskFull,
        "the disk is full",
        "free some space, or set EDGELLM_HOME to a folder on another disk",
    ),
    (
        r"DO NOT MATCH THE HASHES",
        ChecksumMismatch,
        "the index sent a file that is not the one it announced",
        "try again; a mirror or proxy may have altered it",
    ),
    (
        r"CERTIFICATE_VERIFY_FAILED|confirming the ssl certificate|ssl-verification-failed",
        DownloadFailed,
        "the index's certificate is not trusted here",
        "PIP_CERT names a file of certificates to trust",
    ),
    (
        r"\b(401|403|407) (Error|Client Error|Unauthorized|Forbidden|Proxy)",
        DownloadFailed,
        "the index refuses access",
        "put the credentials in pip's configuration (pip config set global.index-url …)",
    ),
    (
        r"Retrying \(|connection-failed|connection-timeout|proxy-connection-failed|incomplete-download|ReadTimeout"
        r"|ConnectionError|ConnectTimeout|ProxyError|SSLError|Connection(Reset| aborted| refused)"
        r"|Temporary failure in name",
        DownloadFailed,
        "the package index cannot be reached",
        f"check the connection and try again. {_MIRROR}",
    ),
    (
        r"No matching distribution found|Could not find a version",
        DownloadFailed,
        "the package index here does not offer it",
        f"name an index that does. {_MIRROR}",
    ),
)


def download(package: str, version: str, folder: Path, report: Report) -> Path:
    """Download exactly that wheel into `folder`, the newest for an empty version; its path.

    Raises DownloadFailed, ChecksumMismatch or DiskFull with pip's last meaningful line. However it ends, pip has ended.
    """
    wheels, scratch = folder / "wheel", folder / "tmp"
    for each in (wheels, scratch):
        each.mkdir(parents=True, exist_ok=True)
    report(PullProgress("resolve"))
    lines: deque[str] = deque(maxlen=_KEPT_LINES)
    process = _start(f"{package}=={version}" if version else package, wheels, scratch)
    try:
        assert process.stdout is not None
        _follow(process.stdout, lines, report)
        code = process.wait()
    finally:
        process.kill()  # a no-op once it has ended
        process.wait()
        if process.stdout is not None:
            process.stdout.close()
    found = sorted(wheels.glob("*.whl"))
    if code == 0 and len(found) == 1:
        return found[0]
    raise explain(f"{package} {version}".strip(), lines)


def _command(requirement: str, wheels: Path) -> list[str]:
    # -P: a folder named pip in the current directory is not pip.
    options = "--no-input --disable-pip-version-check --no-deps --only-binary=:all: --progress-bar raw --dest"
    return [sys.executable, "-P", "-m", "pip", "download", *options.split(), str(wheels), "--", requirement]


def _environment(scratch: Path) -> dict[str, str]:
    # pip downloads to its temporary folder first: let that be on the disk whose space was checked, and swept with
    # the rest. A virtual environment may be required for installing; nothing is installed here.
    temporary = dict.fromkeys(("TMPDIR", "TEMP", "TMP"), str(scratch))
    return {
        **os.environ,
        **temporary,
        "NO_COLOR": "1",
        "PYTHONIOENCODING": "utf-8",
        "PIP_REQUIRE_VIRTUALENV": "0",
    }


def _start(requirement: str, wheels: Path, scratch: Path) -> subprocess.Popen[str]:
    try:
        return subprocess.Popen(
            _command(requirement, wheels),
            env=_environment(scratch),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            encoding="utf-8",
            errors="replace",
        )
    except OSError as error:
        raise DownloadFailed(
            f"cannot run {sys.executable}: {error.strerror or error}", hint="reinstall edgellm"
        ) from error


def _follow(output: Iterable[str], lines: deque[str], report: Report) -> None:
    for line in output:
        progress = _PROGRESS.match(line)
        if progress:
            report(PullProgress("download", int(progress[1]), int(progress[2])))
            continue
        line = "".join(c for c in line if c.isprintable()).strip()
        if line:
            lines.append(line)
        if _RETRY.search(line):
            report(PullProgress("resolve", detail=f"trying again: {_reason(line)}"))


def explain(what: str, lines: Sequence[str]) -> EdgeError:
    """The error for a download of `what` that failed with this output of pip."""
    text = "\n".join(lines)
    for pattern, kind, cause, hint in _CAUSES:
        if re.search(pattern, text):
            return kind(f"cannot download {what}: {cause} ({_last_line(lines)})", hint=hint)
    return DownloadFailed(f"cannot download {what}: {_last_line(lines)}", hint=_MIRROR)


def _last_line(lines: Sequence[str]) -> str:
    """What pip said of the cause: its last connection trouble, else its diagnosis, else its first error line."""
    retries = [line for line in lines if _RETRY.search(line)]
    diagnoses = [line.lstrip("╰─>│ ") for line in lines if line.startswith(("×", "╰─>"))]
    errors = [line.removeprefix("ERROR: ") for line in lines if line.startswith("ERROR: ")]
    for found in ([_reason(retries[-1])] if retries else [], diagnoses[-1:], errors[:1], [*lines][-1:]):
        if found:
            return found[0] if len(found[0]) <= 200 else found[0][:199] + "…"
    return "pip said nothing"


def _reason(line: str) -> str:
    """The plain words inside pip's nested exception texts."""
    found = _RETRY.search(line)
    text = found[1] if found else line
    return re.sub(r"""["']\)+$""", "", re.sub(r"^.*(?:\)|>): ", "", text))
