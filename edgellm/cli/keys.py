"""`edgellm keys`: who else may use the daemon."""

from __future__ import annotations

import time

from edgellm.cli.output import Output
from edgellm.config import load_settings
from edgellm.errors import InvalidRequest
from edgellm.paths import Paths, default_paths
from edgellm.server import keys
from edgellm.units import ago

COLUMNS = ("NAME", "KEY", "MADE")
_USAGE = "`edgellm keys` lists them, `edgellm keys add NAME` makes one, `edgellm keys rm NAME` revokes one"


def manage(action: str | None, name: str | None, *, json: bool, quiet: bool) -> None:
    """List the keys, make one or revoke one. Raises InvalidRequest, InvalidName, NotFound, ConfigError."""
    output = Output(json=json, quiet=quiet)
    paths = default_paths()
    if action is None:
        _list(paths, output)
    elif name is None or action not in ("add", "rm"):
        raise InvalidRequest("say what to do with which key", hint=_USAGE)
    elif action == "add":
        _add(paths, name, output)
    else:
        keys.remove(paths, name)
        output.note(f"{name} opens nothing any more")
        if output.json:
            output.document({"removed": name})


def _add(paths: Paths, name: str, output: Output) -> None:
    first = not keys.stored(keys.path_of(paths)) and not load_settings(paths, {}).settings.api_keys
    key = keys.add(paths, name)
    if output.json:
        output.document({"name": name, "key": key})
        return
    output.line(key)
    output.note("this is the only time it is shown; clients send it as Authorization: Bearer KEY, or as x-api-key")
    if first:
        output.note("from now on programs on this machine need a key as well; edgellm's own commands do not")


def _list(paths: Paths, output: Output) -> None:
    found = keys.stored(keys.path_of(paths))
    given = len(load_settings(paths, {}).settings.api_keys)
    if output.json:
        rows = [{"name": key.name, "shown": key.shown, "created": key.created} for key in found]
        output.document({"file": str(keys.path_of(paths)), "keys": rows, "in_settings": given})
        return
    if found:
        now = time.time()
        output.table(
            COLUMNS, [[key.name, f"{key.shown}…", ago(now - key.created.timestamp())] for key in found], ("MADE",)
        )
    if given:
        output.note(f"and {given} in the settings (api_keys)")
    elif not found:
        output.note("no keys: programs on this machine need none, and other machines are not let in")
        output.note("`edgellm keys add NAME` makes one")
