"""Finds engines and apps by entry point (groups `edgellm.engines`, `edgellm.apps`). Entry points exist even where their
extra is not installed, so finding never imports an engine's libraries; `probe()` does, and says what is missing.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib.metadata import EntryPoint, entry_points
from importlib.util import find_spec

from edgellm.contracts.embedding import EmbeddingPlugin
from edgellm.contracts.engine import Available, EnginePlugin, ModelFile, Unavailable, title_of
from edgellm.contracts.kernels import KernelPlugin, KernelReport
from edgellm.errors import AppUnavailable, EngineUnavailable

ENGINES = "edgellm.engines"
APPS = "edgellm.apps"
ANY = "auto"  # whichever engine is best
PREFERRED = "llamacpp"  # where several can run a model
App = Callable[[str | None], None]  # runs until the user leaves; takes a model's name, or None for the usual one


def engine_names() -> list[str]:
    """Names of all installed engines, sorted."""
    return sorted(entry.name for entry in entry_points(group=ENGINES))


def engine(name: str) -> EnginePlugin:
    """The plugin of that name. Raises EngineUnavailable when there is none or it cannot be imported."""
    found = [entry for entry in entry_points(group=ENGINES) if entry.name == name]
    if not found:
        known = ", ".join(engine_names()) or "none"
        raise EngineUnavailable(f"no engine named {name}", hint=f"installed engines: {known}")
    return _load(found[0])


def require(name: str) -> None:
    """Raises EngineUnavailable where there is no engine of that name, or where libraries that it needs are not here.

    Imports none of them where all are here: whether they work, the engine tells when it loads.
    """
    if _missing(engine(name)):
        state = probe(name)
        if isinstance(state, Unavailable):
            raise EngineUnavailable(f"{title(name)} is not available: {state.reason}", hint=state.hint)


def title(name: str) -> str:
    """What people call the engine of that name."""
    try:
        return title_of(engine(name))
    except EngineUnavailable:
        return name


def probe(name: str) -> Available | Unavailable:
    """Whether the engine can run here; never raises. One without a version of its own has its distribution's."""
    try:
        state = engine(name).probe()
    except EngineUnavailable as error:
        return Unavailable(error.message, error.hint or "reinstall the package that provides it")
    except Exception as error:  # a third party's code
        return Unavailable(f"it failed when asked: {type(error).__name__}: {error}", "report it to its authors")
    if isinstance(state, Available) and not state.version:
        return Available(_distribution(name), state.detail, state.hint)
    return state


def kernels(name: str) -> KernelReport | Unavailable | None:
    """What computes the engine's operations here; None for one that has nothing to choose. Never raises."""
    try:
        plugin = engine(name)
        if not isinstance(plugin, KernelPlugin):
            return None
        state = probe(name)
        return state if isinstance(state, Unavailable) else plugin.kernels()
    except EngineUnavailable as error:
        return Unavailable(error.message, error.hint or "reinstall the package that provides it")
    except Exception as error:  # a third party's code
        return Unavailable(f"it failed when asked: {type(error).__name__}: {error}", "report it to its authors")


def engine_for(model: ModelFile, asked: str = ANY) -> EnginePlugin:
    """The engine to run `model`: the one asked for, else llama.cpp where it can, else the first other that can.

    Never imports an engine's library, which takes time, and then sits in, and may crash, this process; whether there is
    such a library is known without. Whether it works, the engine tells when it loads. EngineUnavailable gives reasons.
    """
    return _chosen(asked, lambda plugin: plugin.supports(model), "run")


def embedder_for(model: ModelFile, asked: str = ANY) -> EmbeddingPlugin:
    """The same for an engine that makes embeddings with `model`."""

    def refusal(plugin: EnginePlugin) -> str | None:
        return plugin.embeds(model) if isinstance(plugin, EmbeddingPlugin) else "it makes no embeddings"

    found = _chosen(asked, refusal, "make embeddings with")
    assert isinstance(found, EmbeddingPlugin)
    return found


def _chosen(asked: str, refusal: Callable[[EnginePlugin], str | None], what: str) -> EnginePlugin:
    if asked != ANY:
        plugin = engine(asked)
        why = refusal(plugin)
        if why is not None:
            raise EngineUnavailable(
                f"{title_of(plugin)} cannot {what} this model: {why}", hint="leave the engine open: engine = auto"
            )
        return plugin
    reasons: list[str] = []
    absent: list[EnginePlugin] = []
    for name in sorted(engine_names(), key=lambda name: (name != PREFERRED, name)):
        plugin = engine(name)
        why = refusal(plugin)
        if why is not None:
            reasons.append(f"{title_of(plugin)}: {why}")
        elif _missing(plugin):
            absent.append(plugin)
        else:
            return plugin
    if absent:
        return absent[0]  # its load says what is missing and how to get it
    raise EngineUnavailable(
        f"no engine can {what} this model (" + "; ".join(reasons or ["none installed"]) + ")",
        hint="`edgellm doctor` shows what is installed",
    )


def _missing(plugin: EnginePlugin) -> list[str]:
    """The libraries that an engine needs and that are not here, as far as it names them."""
    return [name for name in getattr(plugin, "requires", ()) if not _present(name)]


def _present(library: str) -> bool:
    try:
        return find_spec(library) is not None
    except ImportError:  # a part of a package that is not here
        return False


def app_names() -> list[str]:
    """Names of all installed apps, sorted."""
    return sorted(entry.name for entry in entry_points(group=APPS))


def app(name: str) -> App:
    """The app of that name. Raises AppUnavailable when there is none or it cannot be imported."""
    for entry in entry_points(group=APPS):
        if entry.name == name:
            try:
                found: App = entry.load()
            except Exception as error:
                raise AppUnavailable(
                    f"app {name} cannot be imported: {error}",
                    hint=f"reinstall the package that provides {entry.value}",
                ) from error
            return found
    raise AppUnavailable(f"no app named {name} is installed", hint="reinstall edgellm")


def _distribution(name: str) -> str:
    """Who provides an engine: "edgellm-parrot 0.3"."""
    found = [entry.dist for entry in entry_points(group=ENGINES) if entry.name == name and entry.dist is not None]
    return f"{found[0].name} {found[0].version}" if found else "of unknown version"


def _load(entry: EntryPoint) -> EnginePlugin:
    try:
        plugin: EnginePlugin = entry.load()
    except Exception as error:
        raise EngineUnavailable(
            f"engine {entry.name} cannot be imported: {error}",
            hint=f"reinstall the package that provides {entry.value}",
        ) from error
    return plugin
