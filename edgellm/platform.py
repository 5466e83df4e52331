"""Everything that differs between operating systems: detached processes, private files, a worker's stdio, signals.

Where a system lacks something, the function does what comes closest and says so. Nothing else in the project
touches signals, POSIX modes or process groups, but for `cli/start.py`: what it guards includes importing this.
"""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import BinaryIO

from edgellm.paths import expanded

LOG_BYTES = 4 * 1024 * 1024  # a log that is longer starts anew
_PR_SET_PDEATHSIG = 1  # linux/prctl.h
_VMSTAT = Path("/proc/vmstat")


# -- what the disk gives ----------------------------------------------------------------------------


def forget_cached(descriptor: int, offset: int, length: int) -> bool:
    """Drop the system's copy of a part of a file, so that the next read comes from the disk; False if it cannot."""
    if not hasattr(os, "posix_fadvise"):
        return False
    with contextlib.suppress(OSError):
        os.posix_fadvise(descriptor, offset, length, os.POSIX_FADV_DONTNEED)
        return True
    return False


def disk_is_full(error: OSError) -> bool:
    """Whether there is no room left, on the disk or in the user's share of it."""
    return error.errno in (errno.ENOSPC, errno.EDQUOT)


# -- files only this user may read -------------------------------------------------------------------


def make_private_folder(path: Path) -> None:
    """Make the folder, with its parents, closed to other users; one that exists is left as it is."""
    path.mkdir(mode=0o700, parents=True, exist_ok=True)


def write_private(path: Path, data: bytes) -> None:
    """Replace a file in one step; other users never see its content, readers never see half of it.

    The folder must exist.
    """
    descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")  # mkstemp makes it 0600
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        Path(name).replace(path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def open_private_log(path: Path) -> BinaryIO:
    """A file to append to, unbuffered, made with its folder if missing; only this user may read it.

    One that has grown beyond LOG_BYTES is set aside first, as NAME.old.
    Raises OSError, also for a pipe that nobody reads.
    """
    make_private_folder(path.parent)
    if path.exists() and path.stat().st_size > LOG_BYTES:
        path.replace(path.with_name(path.name + ".old"))
    at_once = getattr(os, "O_NONBLOCK", 0)  # a pipe that nobody reads would block
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | at_once, 0o600)
    if at_once:
        os.set_blocking(descriptor, True)
    return os.fdopen(descriptor, "ab", buffering=0)


# -- processes ---------------------------------------------------------------------------------------


def spawn_detached(argv: Sequence[str], log_path: Path) -> int:
    """Start a process that outlives this one and its terminal; its output goes to `log_path`. Returns its pid.

    It runs in the log's folder, so that it holds no other folder busy: paths in `argv` must be absolute.
    Raises OSError when it cannot be started.
    """
    environment = dict(os.environ)
    if environment.get("EDGELLM_HOME"):
        environment["EDGELLM_HOME"] = str(expanded(environment["EDGELLM_HOME"]).absolute())
    with open_private_log(log_path) as log:
        process = subprocess.Popen(
            list(argv),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            cwd=log_path.parent,
            env=environment,
            start_new_session=True,
            creationflags=background_flags(),
        )
    # Reaped if it ends first: a caller may live long (the terminal app), and a zombie would look alive.
    threading.Thread(target=process.wait, name=f"reap-{process.pid}", daemon=True).start()
    return process.pid


def background_flags() -> int:
    """`creationflags` of a process without a console window, out of reach of this console's Ctrl+C. 0 elsewhere."""
    if sys.platform == "win32":
        return subprocess.CREATE_NEW_PROCESS_GROUP | subprocess.CREATE_NO_WINDOW
    return 0


def pid_alive(pid: int) -> bool:
    """Whether a process of this id runs; one that has ended and waits to be reaped does not."""
    import psutil

    if pid <= 0:
        return False
    try:
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False
    except psutil.AccessDenied:
        return True


def pid_suspended(pid: int) -> bool:
    """Whether a process was stopped and waits to be continued (SIGSTOP, a debugger). Windows does not tell: False."""
    import psutil

    try:
        return bool(psutil.Process(pid).status() in (psutil.STATUS_STOPPED, psutil.STATUS_TRACING_STOP))
    except psutil.Error:
        return False


def death_of(returncode: int) -> str:
    """How a process ended, in words: "exit code 1", "killed by SIGKILL"."""
    if returncode >= 0:
        return f"exit code {returncode}"
    try:
        return f"killed by {signal.Signals(-returncode).name}"
    except ValueError:
        return f"killed by signal {-returncode}"


def memory_kills() -> int:
    """How many processes the system has killed for want of memory since it started; 0 where it does not tell."""
    with contextlib.suppress(OSError, ValueError):
        for line in _VMSTAT.read_bytes().splitlines():
            if line.startswith(b"oom_kill "):
                return int(line.split()[1])
    return 0


def killed_for_memory(returncode: int | None, kills_before: int) -> bool:
    """Whether a process was probably killed for want of memory; `kills_before`: `memory_kills` when it started."""
    return os.name == "posix" and returncode == -signal.SIGKILL and memory_kills() > kills_before


def raise_descriptor_limit(wanted: int) -> int:
    """Let this process have `wanted` open files, or as many as the system allows; some start with 256.

    Returns how many of them it may have now.
    """
    if sys.platform == "win32":
        return wanted
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    if soft != resource.RLIM_INFINITY and soft < most:
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
            soft = most
    return wanted if soft == resource.RLIM_INFINITY else min(wanted, soft)


# -- being asked to end ------------------------------------------------------------------------------


@contextlib.contextmanager
def end_signals(notify: Callable[[], None]) -> Iterator[None]:
    """While the block runs, `notify` is called at each request to end this process: Ctrl+C, SIGTERM, a closed terminal.

    For the main thread. `notify` runs between any two bytecodes: let it only hand on what happened.
    """
    names = ("SIGINT", "SIGTERM", "SIGHUP", "SIGBREAK")  # the last is Windows' Ctrl+Break; SIGHUP it lacks
    numbers = [getattr(signal, name) for name in names if hasattr(signal, name)]
    heeded = [number for number in numbers if signal.getsignal(number) != signal.SIG_IGN]  # nohup
    before = {number: signal.signal(number, lambda *_: notify()) for number in heeded}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextlib.contextmanager
def unseen_typing() -> Iterator[None]:
    """While the block runs, the terminal does not show what is typed, ^C included; it is read afterwards, key by key.

    Nothing where stdin is no terminal, and on Windows, whose console shows only what is being read.
    """
    if os.name != "posix" or sys.stdin is None or not sys.stdin.isatty():
        yield
        return
    import termios

    descriptor = sys.stdin.fileno()
    before = termios.tcgetattr(descriptor)
    silent = list(before)
    # Without NOFLSH, Ctrl+C drops the output that the terminal has not read yet: a hole in what was shown.
    silent[3] = (silent[3] & ~(termios.ECHO | termios.ICANON)) | termios.NOFLSH
    silent[0] &= ~termios.ICRNL  # so that Enter stays what it is
    try:
        termios.tcsetattr(descriptor, termios.TCSANOW, silent)
        yield
    finally:
        termios.tcsetattr(descriptor, termios.TCSANOW, before)


# -- inside a worker ---------------------------------------------------------------------------------


def take_stdio_for_frames() -> tuple[BinaryIO, BinaryIO]:
    """Take stdin and stdout away for frames: (source, sink). Call it first, before anything prints.

    Native code prints to fd 1; from here on that is stderr, and fd 0 is empty. The two are not inherited by children.
    """
    source, sink = os.dup(0), os.dup(1)
    empty = os.open(os.devnull, os.O_RDONLY)
    os.dup2(empty, 0)
    os.close(empty)
    with contextlib.suppress(OSError, ValueError):
        sys.stdout.flush()
    os.dup2(2, 1)
    if sys.platform == "win32":
        import msvcrt

        msvcrt.setmode(source, os.O_BINARY)
        msvcrt.setmode(sink, os.O_BINARY)
    return os.fdopen(source, "rb", buffering=0), os.fdopen(sink, "wb")


def become_killable_with_parent() -> bool:
    """Have the kernel kill this process when the thread that started it ends. Linux only; False elsewhere.

    A second line of defence: the first is end of file on stdin, which every system has.
    """
    if not sys.platform.startswith("linux"):
        return False
    import ctypes

    try:
        return bool(ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) == 0)
    except (OSError, AttributeError):
        return False
