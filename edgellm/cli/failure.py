"""Turns whatever ended a command into a message and an exit code. A traceback is shown only where it was asked for."""

from __future__ import annotations

import contextlib
import errno
import os
import sys

import typer

from edgellm.cli.mistakes import mistake
from edgellm.cli.output import Output
from edgellm.cli.terminal import PipeClosed
from edgellm.errors import EdgeError, Interrupted, InvalidRequest
from edgellm.platform import disk_is_full

PIPE_CLOSED = 141  # what a shell reports for a program that a closed pipe ended: 128 + SIGPIPE


def report(error: BaseException, *, debug: bool, json: bool) -> int:
    """Say what went wrong, on stderr, and return the exit code."""
    output = Output(json=json)
    output.clear_status()
    if debug or os.environ.get("EDGELLM_DEBUG", "") not in ("", "0"):
        import traceback

        sys.stderr.write("".join(traceback.format_exception(error)))
    if isinstance(error, SystemExit):
        return error.code if isinstance(error.code, int) else 0 if error.code is None else 1
    if isinstance(error, (KeyboardInterrupt, typer.Abort, Interrupted)):
        return Interrupted.exit_code
    if _pipe_closed(error):
        _abandon_stdout()
        return PIPE_CLOSED
    told = _translated(error)
    try:
        output.error(told)
    except OSError:  # stdout is what cannot be written, or even stderr
        _abandon_stdout()
        with contextlib.suppress(OSError):
            Output().error(told)
    return told.exit_code


def _translated(error: BaseException) -> EdgeError:
    if isinstance(error, EdgeError):
        return error
    if (mistaken := mistake(error)) is not None:
        return mistaken
    if isinstance(error, OSError) and disk_is_full(error):
        from edgellm.errors import DiskFull

        return DiskFull("the disk is full", hint="free some space; `edgellm list --sort size` shows the large models")
    if isinstance(error, OSError) and error.filename is not None:
        return InvalidRequest(f"{error.filename}: {error.strerror}")
    if isinstance(error, FileNotFoundError) and _folder_is_gone():
        return InvalidRequest("the folder that this runs in is not there any more", hint="change into another: cd")
    return EdgeError(
        f"internal error: {type(error).__name__}: {error}",
        hint="--debug shows where; `edgellm logs` what the daemon says",
    )


def _folder_is_gone() -> bool:
    try:
        os.getcwd()  # noqa: PTH109 - that it fails is what is asked
    except OSError:
        return True
    return False


def _pipe_closed(error: BaseException) -> bool:
    """The reader of stdout has gone. Windows says EINVAL, and names no file."""
    if isinstance(error, PipeClosed | BrokenPipeError):
        return True
    return os.name == "nt" and isinstance(error, OSError) and error.errno == errno.EINVAL and not error.filename


def _abandon_stdout() -> None:
    """Point stdout at nothing, or the interpreter complains when it flushes at exit."""
    try:
        nothing = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nothing, sys.stdout.fileno())
        os.close(nothing)
    except (OSError, ValueError):
        pass
