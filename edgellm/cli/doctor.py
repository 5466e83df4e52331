"""`edgellm doctor`: what this machine has, what works, what does not and what mends it, and the next step."""

from __future__ import annotations

import os
import platform
import re
import shutil
import sys
from pathlib import Path

import msgspec

from edgellm import __version__, plugins
from edgellm.cli.link import running_daemon
from edgellm.cli.output import Output
from edgellm.config import load_settings
from edgellm.contracts.engine import Available
from edgellm.errors import EdgeError, LibraryError
from edgellm.library.catalogue import STARTER
from edgellm.library.store import Listing, Store
from edgellm.paths import Paths, default_paths
from edgellm.placement import machine
from edgellm.units import GIB, size

_LITTLE_DISK = GIB


class Problem(msgspec.Struct, frozen=True):
    """Something that is wrong, and what mends it. `broken`: edgellm cannot work well until it is mended."""

    what: str
    mend: str
    broken: bool = True


class Report(msgspec.Struct):
    """All that was found, by section: label -> text; and the problems on the way."""

    machine: dict[str, str] = {}
    engines: dict[str, str] = {}
    store: dict[str, str] = {}
    daemon: dict[str, str] = {}
    problems: list[Problem] = []
    next: str = ""

    @property
    def ok(self) -> bool:
        """Nothing is broken."""
        return not any(problem.broken for problem in self.problems)


def examine(*, json: bool) -> None:
    """Print the report. Ends with the exit code of a LibraryError when something is broken."""
    output = Output(json=json)
    report = diagnose(default_paths())
    if json:
        output.document({"ok": report.ok, "version": __version__, **msgspec.to_builtins(report)})
    else:
        _print(report, output)
    if not report.ok:
        sys.stdout.flush()
        raise SystemExit(LibraryError.exit_code)


def _print(report: Report, output: Output) -> None:
    for title in ("machine", "engines", "store", "daemon"):
        output.line(title)
        output.pairs(getattr(report, title))
    for problem in report.problems:
        output.line()
        output.line(f"{'broken' if problem.broken else 'note'}: {problem.what}")
        output.line(f"  mend: {problem.mend}")
    output.line()
    output.line(f"next: {report.next}")


def diagnose(paths: Paths) -> Report:
    """Examine everything; a part that fails becomes a problem and hides no other."""
    report = Report()
    _machine(report, paths)
    _settings(report, paths)
    _engines(report)
    listing = _store(report, paths)
    _daemon(report, paths)
    report.next = _next(report, listing)
    return report


def _machine(report: Report, paths: Paths) -> None:
    memory = machine.memory()
    free = shutil.disk_usage(_existing(paths.models)).free
    cores = machine.cores()
    report.machine = {
        "system": f"{platform.system()} {platform.release()}, {platform.machine()}",
        "python": f"{platform.python_version()} ({sys.executable})",
        "processor": f"{machine.cpu_name()}, {cores} usable {'core' if cores == 1 else 'cores'}",
        "memory": f"{size(memory.available)} free of {size(memory.total)}",
        "disk": f"{size(free)} free in {paths.models}",
    }
    if free < _LITTLE_DISK:
        mend = "free some space, or set EDGELLM_HOME to a folder on another disk"
        report.problems.append(Problem(f"only {size(free)} of disk is left for models", mend, broken=False))
    for folder in (paths.models, paths.runtime, paths.logs):
        there = _existing(folder)
        if not (there.is_dir() and os.access(there, os.W_OK)):
            mend = "give this user the right to, or set EDGELLM_HOME to another folder"
            report.problems.append(Problem(f"{folder} cannot be written to", mend))


def _settings(report: Report, paths: Paths) -> None:
    try:
        resolved = load_settings(paths, {})
    except EdgeError as error:
        report.problems.append(_problem(error))
        return
    changed = [name for name, source in resolved.sources.items() if source != "default"]
    report.machine["settings"] = f"{paths.config_file}" + ("" if paths.config_file.exists() else " (not there)")
    if changed:
        report.machine["changed"] = ", ".join(changed) + " (`edgellm config`)"


def _engines(report: Report) -> None:
    able = 0
    for name in plugins.engine_names():
        state = plugins.probe(name)
        if isinstance(state, Available):
            able += 1
            detail = re.sub(r"\s*=\s*1\b", "", state.detail).replace(" | ", ", ")  # "AVX2 = 1 | FMA = 1"
            report.engines[name] = " · ".join(filter(None, (state.version, detail)))
            if state.hint:
                report.problems.append(Problem(f"engine {name} could be faster", state.hint, broken=False))
        else:
            report.engines[name] = f"not available: {state.reason}"
            report.problems.append(Problem(f"engine {name}: {state.reason}", state.hint, broken=False))
    if not able:
        report.problems.append(
            Problem("no engine can run here", "reinstall edgellm; the engine notes say what is missing")
        )
    if not report.engines:
        report.engines["none"] = "no engine is installed"


def _store(report: Report, paths: Paths) -> Listing:
    try:
        listing = Store(paths).scan()
    except (EdgeError, OSError) as error:
        told = error if isinstance(error, EdgeError) else LibraryError(f"{paths.models} cannot be read: {error}")
        report.problems.append(_problem(told))
        report.store["models"] = "cannot be read"
        return Listing([], [])
    total = sum({m.model.digest: m.size for m in listing.manifests}.values())
    count = len(listing.manifests)
    report.store["models"] = f"{count} ({size(total)})" if count else "none yet"
    report.problems.extend(Problem(damaged.problem, damaged.hint) for damaged in listing.damaged)
    leftovers = _leftovers(paths.models / "partial")
    if leftovers:
        report.store["unfinished"] = (
            f"{size(leftovers)} in {paths.models / 'partial'}; the next pull uses or removes it"
        )
    return listing


def _daemon(report: Report, paths: Paths) -> None:
    try:
        daemon = running_daemon(paths)
    except EdgeError as error:
        report.problems.append(_problem(error))
        report.daemon["state"] = "does not answer"
        return
    if daemon is None:
        report.daemon["state"] = "not running; commands that need it start it"
        return
    if daemon.version != __version__:
        what = f"the running daemon is edgellm {daemon.version}, this is {__version__}"
        report.problems.append(Problem(what, "`edgellm stop --all` ends it; the next command starts the right one"))
    loaded = ", ".join(daemon.loaded) or "no model"
    report.daemon = {
        "state": f"running, version {daemon.version}, pid {daemon.pid}",
        "url": daemon.url,
        "loaded": loaded,
    }


def _next(report: Report, listing: Listing) -> str:
    broken = next((problem for problem in report.problems if problem.broken), None)
    if broken is not None:
        return f"mend what is broken: {broken.mend}"
    if not listing.manifests:
        return f"`edgellm pull {STARTER}` fetches a small model to start with (94 MiB)"
    # One that answers questions, where there is one.
    chosen = next((m for m in listing.manifests if m.summary.has_chat_template), listing.manifests[0])
    return f'`edgellm run {chosen.full_name} "Why is the sky blue?"` or `edgellm serve`'


def _leftovers(folder: Path) -> int:
    """Bytes of unfinished pulls."""
    try:
        return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    except OSError:
        return 0


def _existing(path: Path) -> Path:
    """The nearest folder above that exists."""
    return next((folder for folder in (path, *path.parents) if folder.exists()), Path.cwd())


def _problem(error: EdgeError) -> Problem:
    return Problem(error.message, error.hint or "see the message")
