"""`edgellm ps`, `stop` and `serve`: the daemon, seen from the command line."""

from __future__ import annotations

import time
from collections.abc import Mapping

from edgellm.cli.lenient import settings_or_defaults
from edgellm.cli.output import Output
from edgellm.client import DaemonClient
from edgellm.config import load_settings
from edgellm.contracts.status import LoadedModel
from edgellm.errors import DaemonError, InvalidRequest, NotFound
from edgellm.library.store import Store
from edgellm.paths import Paths, default_paths
from edgellm.units import number, seconds, size

COLUMNS = ("NAME", "STATE", "ENGINE", ">SIZE", ">CONTEXT", ">KV", ">RUNNING", ">WAITING", "UNLOADS")
SPARE = ("ENGINE", "CONTEXT", "SIZE", "KV", "WAITING", "RUNNING")


def list_running(*, json: bool) -> None:
    """Print the models in memory; none when no daemon runs."""
    output = Output(json=json)
    paths = default_paths()
    settings_or_defaults(paths, output)
    client = DaemonClient.find(paths)
    models: list[LoadedModel] = []
    if client is not None:
        with client:
            models = client.ps()
    if json:
        daemon = None if client is None else {"url": client.info.url, "pid": client.info.pid}
        output.document({"daemon": daemon, "models": models})
    elif not models:
        output.note("no daemon is running" if client is None else "no model is loaded")
    else:
        output.table(COLUMNS, [_row(model, time.time()) for model in models], SPARE)
        for model in models:
            if model.detail:
                (output.note if model.state == "loading" else output.warn)(f"{model.name}: {model.detail}")


def stop(name: str | None, *, everything: bool, json: bool, quiet: bool) -> None:
    """Unload one model, or (`everything`) end the daemon."""
    if everything == (name is not None):
        raise InvalidRequest("name a model, or say --all", hint="`edgellm ps` lists what is loaded")
    output = Output(json=json, quiet=quiet)
    paths = default_paths()
    settings_or_defaults(paths, output)
    if name is None:
        _end_daemon(paths, output)
        return
    client = DaemonClient.find(paths, any_version=True)
    if client is None:
        raise NotFound(f"{name} is not loaded: no daemon is running", hint="nothing needs to be stopped")
    with client:
        if not client.stop(name):
            raise NotFound(f"{name} is not loaded", hint="`edgellm ps` lists what is")
    _done(output, f"stopped {name}", {"stopped": name})


def serve(flags: Mapping[str, object]) -> None:
    """Run the daemon in this process until it is told to stop. Raises DaemonError when one runs already.

    Raises EngineUnavailable or NotFound where the settings name an engine that cannot run here, or a draft model that
    is not in the store: no model would ever load.
    """
    paths = default_paths()
    settings = load_settings(paths, flags).settings
    from edgellm import plugins
    from edgellm.server.daemon import run_daemon, set_up_logging

    if settings.engine != plugins.ANY:
        plugins.require(settings.engine)
    if settings.draft:
        Store(paths).require(settings.draft)

    set_up_logging(settings)
    output = Output()

    def on_ready(url: str) -> None:
        output.note(f"serving the OpenAI API at {url}/v1 (Ctrl+C ends it)")

    run_daemon(settings, paths, detached=False, on_ready=on_ready)
    if output.interactive:
        output.note("\nended")  # below the ^C that the terminal shows


def _end_daemon(paths: Paths, output: Output) -> None:
    client = DaemonClient.find(paths, any_version=True)
    if client is None:
        _done(output, "no daemon is running", {"stopped": None})
        return
    pid = client.info.pid
    with client:
        if not client.shutdown():
            raise DaemonError(f"the daemon (pid {pid}) is still finishing answers", hint="it ends when they are done")
    _done(output, "stopped the daemon", {"stopped": "daemon", "pid": pid})


def _done(output: Output, text: str, document: Mapping[str, object]) -> None:
    output.note(text)
    if output.json:
        output.document(document)


def _row(model: LoadedModel, now: float) -> list[str]:
    share = f"{100 * model.kv_used / model.capacity:.0f} %" if model.capacity else "–"
    return [
        model.name,
        model.state,
        model.engine or "–",
        size(model.size),
        number(model.context),
        share,
        str(model.running),
        str(model.waiting),
        _until(model, now),
    ]


def _until(model: LoadedModel, now: float) -> str:
    if model.expires_at is not None:
        return f"in {seconds(max(0.0, model.expires_at - now), whole=True)}"
    return "in use" if model.running or model.waiting else "never"
