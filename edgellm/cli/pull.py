"""`edgellm pull`: fetch or import a model, with a bar, and say whether it fits this machine."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from edgellm.cli.output import Bar, Output
from edgellm.config import Settings, load_settings
from edgellm.errors import EdgeError, InvalidName
from edgellm.library.catalogue import Catalogue
from edgellm.library.catalogue_file import CatalogueEntry, PypiSource
from edgellm.library.jobs import partials
from edgellm.library.manifest import Manifest
from edgellm.library.names import parse_name
from edgellm.library.pull import Announcement, PullResult, pull
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
    "convert": "converting",
    "publish": "putting it into the store",
}


def pull_model(reference: str, name: str | None, *, json: bool, quiet: bool) -> None:
    """Pull what `reference` names; `name` overrides what it is called in the store."""
    output = Output(json=json, quiet=quiet)
    paths = default_paths()
    settings = load_settings(paths, {}).settings
    entry = _entry(reference, paths)
    pulling = _Pull(output)
    if entry is not None and isinstance(entry.source, PypiSource):  # a hub's is announced once it has been asked
        output.note(_described(entry, entry.source))
        pulling.described = True
    result = pulling.run(reference, name, settings, paths)
    full_name = str(result.manifest.full_name)
    if json:
        output.document({"name": full_name, "already": result.already, **msgspec.to_builtins(result.manifest.summary)})
    elif quiet:
        output.line(full_name)
    elif result.already:
        output.sentence(f"{full_name} is already here. {_what_next(result.manifest)}")
    else:
        if not pulling.described:
            output.note(_found(result.manifest))
        if not pulling.fit_said:
            _say_fit(result, settings, paths, output)
        output.sentence(f"ready. {_what_next(result.manifest)}")


def _what_next(manifest: Manifest) -> str:
    if manifest.summary.embeds:
        return f"It makes embeddings: `edgellm serve`, then POST to /v1/embeddings with model {manifest.full_name}"
    what = "Ask it" if manifest.summary.has_chat_template else "It continues text, without a chat template"
    return f"{what}: `edgellm run {manifest.full_name}`"


class _Pull:
    """One pull on a terminal: what it says as it goes."""

    def __init__(self, output: Output) -> None:
        self._output = output
        self._bar = Bar(output)
        self._converted = False
        self._moved = False  # whether bytes have come
        self.described = False
        self.fit_said = False
        self._name = ""  # what it will be called, once that is known

    def run(self, reference: str, name: str | None, settings: Settings, paths: Paths) -> PullResult:
        try:
            result = pull(
                reference, name=name, paths=paths, report=self._report, settings=settings, announce=self._announce
            )
        except KeyboardInterrupt:
            self._say_rest(paths)
            raise
        finally:
            self._output.clear_status()
        if not result.already:
            self._bar.finish(result.manifest.size, "converted" if self._converted else "verified")
        return result

    def _report(self, progress: PullProgress) -> None:
        self._converted |= progress.stage == "convert"
        if progress.stage in ("download", "copy", "convert") and progress.total:
            self._moved |= not progress.detail  # else another pull's, which this one waits for
            self._bar.update(progress.done, progress.total, progress.detail)
        else:
            self._output.status(progress.detail or f"{_STAGES[progress.stage]} …")

    def _say_rest(self, paths: Paths) -> None:
        """After Ctrl+C: whether what came is lost: of what pip fetches, or is copied or converted, nothing is kept."""
        rest = next((each for each in partials(paths) if each.name == self._name and each.done), None)
        if rest is not None:
            self._output.note(
                f"stopped at {size(rest.done)} of {size(rest.total)}; the same command goes on from there"
            )
        elif self._moved:
            self._output.note("stopped; nothing of it is kept, and the same command begins anew")

    def _announce(self, found: Announcement) -> None:
        output = self._output
        self._name, self.described = str(found.name), True
        output.note(_announced(found))
        for note in found.notes:
            output.note(note)
        if found.here:
            output.note(f"going on: {size(found.here)} of {size(found.size)} are here from before")
        if found.fit is not None:
            output.note(f"fits: {found.fit}")
            if found.pace:
                output.note(f"expected: {found.pace}")
        elif found.problem:
            output.warn(found.problem)
        self.fit_said = found.fit is not None or bool(found.problem)


def _entry(reference: str, paths: Paths) -> CatalogueEntry | None:
    try:
        return Catalogue.load(paths).get(parse_name(reference))
    except InvalidName:  # a file, or a mistake that `pull` will explain
        return None


def _described(entry: CatalogueEntry, source: PypiSource) -> str:
    place = f"from PyPI ({source.package} {source.version})"
    facts = [entry.title, entry.quantization, size(entry.size), entry.licence, place]
    return f"{entry.name}  {' · '.join(fact for fact in facts if fact)}"


def _announced(found: Announcement) -> str:
    summary = found.summary
    title = found.card.title or (summary.name if summary else "")
    facts = [title, summary.quantization if summary else "", size(found.size), found.card.licence, found.source]
    return f"{found.name}  {' · '.join(fact for fact in facts if fact)}"


def _found(manifest: Manifest) -> str:
    """What turned out to be in a file, or in a package."""
    about = manifest.summary
    licence = "" if manifest.licence == "unknown" else manifest.licence
    facts = [manifest.title, about.architecture, about.quantization, size(manifest.size), licence]
    return f"{manifest.full_name}  {' · '.join(fact for fact in facts if fact)}"


def _say_fit(result: PullResult, settings: Settings, paths: Paths, output: Output) -> None:
    """The room it would get here; what stands in the way is a warning, for the pull itself succeeded."""
    from edgellm.library.fitting import fit_of

    try:
        output.sentence(f"fits: {fit_of(Store(paths).header(result.manifest), settings)}")
    except EdgeError as error:
        output.warn(error.line)
