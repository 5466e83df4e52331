"""`edgellm pull`: fetch or import a model, with a bar, and say whether it fits this machine."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from edgellm.cli.output import Bar, Output
from edgellm.config import Settings, load_settings
from edgellm.errors import EdgeError, InvalidName
from edgellm.library.catalogue import Catalogue, CatalogueEntry
from edgellm.library.names import parse_name
from edgellm.library.pull import PullResult, pull
from edgellm.library.store import Store
from edgellm.paths import Paths, default_paths
from edgellm.units import size

if TYPE_CHECKING:
    from edgellm.library.staging import PullProgress

_STAGES = {
    "resolve": "looking for it",
    "download": "downloading",
    "verify": "verifying",
    "copy": "copying",
    "publish": "putting it into the store",
}


def pull_model(reference: str, name: str | None, *, json: bool, quiet: bool) -> None:
    """Pull `reference`, a catalogue name or a file; `name` overrides what it is called in the store."""
    output = Output(json=json, quiet=quiet)
    paths = default_paths()
    settings = load_settings(paths, {}).settings
    entry = _entry(reference, paths)
    if entry is not None:
        output.note(_described(entry))
    result = _pull(reference, name, paths, output)
    full_name = str(result.manifest.full_name)
    if json:
        output.document({"name": full_name, "already": result.already, **msgspec.to_builtins(result.manifest.summary)})
    elif quiet:
        output.line(full_name)
    elif result.already:
        output.line(f"{full_name} is already here. Ask it: `edgellm run {full_name}`")
    else:
        _say_fit(result, settings, paths, output)
        what = "Ask it" if result.manifest.summary.has_chat_template else "It continues text, without a chat template"
        output.line(f"ready. {what}: `edgellm run {full_name}`")


def _pull(reference: str, name: str | None, paths: Paths, output: Output) -> PullResult:
    bar = Bar(output)

    def report(progress: PullProgress) -> None:
        if progress.stage in ("download", "copy") and progress.total:
            bar.update(progress.done, progress.total)
        else:
            output.status(progress.detail or f"{_STAGES[progress.stage]} …")

    try:
        result = pull(reference, name=name, paths=paths, report=report)
    finally:
        output.clear_status()
    if not result.already:
        bar.finish(result.manifest.size, "verified")
    return result


def _entry(reference: str, paths: Paths) -> CatalogueEntry | None:
    try:
        return Catalogue.load(paths).get(parse_name(reference))
    except InvalidName:  # a file, or a mistake that `pull` will explain
        return None


def _described(entry: CatalogueEntry) -> str:
    source = f"from PyPI ({entry.source.package} {entry.source.version})"
    facts = [entry.title, entry.quantization, size(entry.size), entry.licence, source]
    return f"{entry.name}  {' · '.join(fact for fact in facts if fact)}"


def _say_fit(result: PullResult, settings: Settings, paths: Paths, output: Output) -> None:
    """The room it would get here; what stands in the way is a warning, for the pull itself succeeded."""
    from edgellm.cli.fit import fit

    try:
        output.line(f"fits: {fit(Store(paths).model_path(result.manifest), settings)}")
    except EdgeError as error:
        output.warn(error.message + (f"; {error.hint}" if error.hint else ""))
