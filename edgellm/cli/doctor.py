"""`edgellm doctor`: what this machine has, what works, what does not and what mends it, and the next step."""

from __future__ import annotations

import os
import platform
import re
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from edgellm import __version__, plugins
from edgellm.cli.link import DaemonState, running_daemon
from edgellm.cli.output import Output
from edgellm.cli.suggest import Means, next_step
from edgellm.config import load_settings
from edgellm.contracts.engine import Available
from edgellm.errors import EdgeError, LibraryError
from edgellm.library.store import Listing, Store
from edgellm.paths import Paths, default_paths
from edgellm.placement import machine
from edgellm.units import GIB, size

_LITTLE = GIB  # of disk or memory
SECTIONS = ("machine", "engines", "models", "daemon", "places")


class Problem(msgspec.Struct, frozen=True):
    """Something that is wrong, and what mends it. `broken`: edgellm cannot work well until it is mended."""

    what: str
    mend: str
    broken: bool = True


class Report(msgspec.Struct):
    """All that was found, by section: label -> text; the problems on the way; and the figures behind the texts."""

    machine: dict[str, str] = {}
    engines: dict[str, str] = {}
    models: dict[str, str] = {}
    daemon: dict[str, str] = {}
    places: dict[str, str] = {}
    problems: list[Problem] = []
    next: str = ""
    figures: dict[str, Any] = {}  # bytes and counts

    @property
    def ok(self) -> bool:
        """Nothing is broken."""
        return not any(problem.broken for problem in self.problems)

    def add(self, what: str, mend: str, *, broken: bool = True) -> None:
        self.problems.append(Problem(what, mend, broken))


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
    for title in SECTIONS:
        output.line(title)
        output.pairs(getattr(report, title))
    for problem in report.problems:
        output.line()
        output.sentence(f"{'broken' if problem.broken else 'note'}: {problem.what}")
        output.sentence(f"  mend: {problem.mend}")
    output.line()
    broken = sum(problem.broken for problem in report.problems)
    if broken:
        output.sentence(f"{broken} {'thing is' if broken == 1 else 'things are'} broken.")
    else:
        output.sentence("Everything that edgellm needs is here.")
    output.sentence(f"next: {report.next}")


def diagnose(paths: Paths) -> Report:
    """Examine everything; a part that fails becomes a problem and hides no other."""
    report = Report()
    _machine(report, paths)
    _settings(report, paths)
    _engines(report)
    listing = _models(report, paths)
    daemon = _daemon(report, paths)
    _places(report, paths)
    report.next = _next(report, listing, daemon, paths)
    return report


def _machine(report: Report, paths: Paths) -> None:
    memory = machine.memory()
    free = shutil.disk_usage(_existing(paths.models)).free
    cores = machine.cores()
    report.machine = {
        "system": f"{platform.system()} {platform.release()}, {platform.machine()}",
        "processor": f"{machine.cpu_name()}, {cores} usable {'core' if cores == 1 else 'cores'}",
        "memory": f"{size(memory.available)} free of {size(memory.total)}",
        "disk": f"{size(free)} free for models",
        "python": platform.python_version(),
    }
    report.figures |= {"cores": cores, "memory": memory.total, "memory_free": memory.available, "disk_free": free}
    if free < _LITTLE:
        mend = "free some space, or set EDGELLM_HOME to a folder on another disk"
        report.add(f"only {size(free)} of disk is left for models", mend, broken=False)
    if memory.available < _LITTLE:
        mend = "close other programs; `edgellm ps` shows what is loaded, `edgellm stop NAME` unloads it"
        report.add(
            f"only {size(memory.available)} of memory is free: models will be slow or refused", mend, broken=False
        )
    for folder in (paths.models, paths.runtime, paths.logs):
        there = _existing(folder)
        if not (there.is_dir() and os.access(there, os.W_OK)):
            mend = "give this user the right to, or set EDGELLM_HOME to another folder"
            report.add(f"{folder} cannot be written to", mend)


def _settings(report: Report, paths: Paths) -> None:
    try:
        resolved = load_settings(paths, {})
    except EdgeError as error:
        _add(report, error)
        return
    changed = [name for name, source in resolved.sources.items() if source != "default"]
    if changed:
        report.machine["settings"] = "changed: " + ", ".join(changed) + " (`edgellm config`)"


def _engines(report: Report) -> None:
    states = {name: plugins.probe(name) for name in plugins.engine_names()}
    able = [name for name, state in states.items() if isinstance(state, Available)]
    for name, state in states.items():
        known = plugins.title(name)
        if isinstance(state, Available):
            report.engines[known] = " · ".join(filter(None, (state.version, _features(state.detail))))
            if state.hint:
                report.add(f"{known} could run better here", state.hint, broken=False)
        else:
            report.engines[known] = f"not available: {state.reason}"
            # One of several is a choice; the only one is a must.
            report.add(f"{known} is not available: {state.reason}", state.hint, broken=not able)
    if not states:
        report.engines["none"] = "no engine is installed"
        report.add("no engine is installed, so no model can run", "reinstall edgellm")
    report.figures["engines"] = {name: msgspec.to_builtins(state) for name, state in states.items()}


def _features(detail: str) -> str:
    """ "CPU : AVX2 = 1 | FMA = 1" as "CPU: AVX2, FMA"."""
    return re.sub(r"\s*=\s*1\b", "", detail).replace(" | ", ", ").replace(" :", ":")


def _models(report: Report, paths: Paths) -> Listing:
    try:
        listing = Store(paths).scan()
    except (EdgeError, OSError) as error:
        told = error if isinstance(error, EdgeError) else LibraryError(f"{paths.models} cannot be read: {error}")
        _add(report, told)
        report.models["here"] = "cannot be read"
        return Listing([], [])
    names = [str(manifest.full_name) for manifest in listing.manifests]
    total = sum({m.model.digest: m.size for m in listing.manifests}.values())
    report.models["here"] = f"{_listed(names)} ({size(total)})" if names else "none yet"
    report.figures |= {"models": names, "models_size": total}
    for damaged in listing.damaged:
        report.add(damaged.problem, damaged.hint)
    leftovers = _leftovers(paths.models / "partial")
    if leftovers:
        report.models["unfinished"] = f"{size(leftovers)}; the next pull uses or removes it"
    return listing


def _daemon(report: Report, paths: Paths) -> DaemonState | None:
    try:
        daemon = running_daemon(paths)
    except EdgeError as error:
        _add(report, error)
        report.daemon["state"] = "does not answer"
        return None
    report.figures["daemon"] = None if daemon is None else msgspec.to_builtins(daemon)
    if daemon is None:
        report.daemon["state"] = "not running; commands that need it start it"
        return None
    if daemon.version != __version__:
        what = f"the running daemon is edgellm {daemon.version}, this is {__version__}"
        report.add(what, "`edgellm stop --all` ends it; the next command starts the right one")
    report.daemon = {
        "state": f"running, version {daemon.version}, pid {daemon.pid}",
        "url": daemon.url,
        "loaded": ", ".join(daemon.loaded) or "no model",
    }
    return daemon


def _places(report: Report, paths: Paths) -> None:
    absent = "" if paths.config_file.exists() else " (not there: all defaults)"
    report.places = {
        "models": str(paths.models),
        "settings": f"{paths.config_file}{absent}",
        "logs": f"{paths.logs} (`edgellm logs`)",
        "program": f"{Path(__file__).parent.parent} in {sys.executable}",
    }


def _next(report: Report, listing: Listing, daemon: DaemonState | None, paths: Paths) -> str:
    broken = next((problem for problem in report.problems if problem.broken), None)
    if broken is not None:
        return f"mend what is broken: {broken.mend}"
    found = report.figures
    means = Means(found["memory_free"], found["disk_free"], found["cores"])
    step = next_step(listing.manifests, paths, means, daemon)
    if shutil.which("edgellm") is None:
        return f"{step} (the command is {Path(sys.executable).parent / 'edgellm'} here)"
    return step


def _listed(names: Sequence[str], most: int = 6) -> str:
    more = len(names) - most
    return ", ".join(names[:most]) + (f" and {more} more" if more > 0 else "")


def _leftovers(folder: Path) -> int:
    """Bytes of unfinished pulls."""
    try:
        return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    except OSError:
        return 0


def _existing(path: Path) -> Path:
    """The nearest folder above that exists."""
    return next((folder for folder in (path, *path.parents) if folder.exists()), Path.cwd())


def _add(report: Report, error: EdgeError) -> None:
    report.add(error.message, error.hint or "see the message")
