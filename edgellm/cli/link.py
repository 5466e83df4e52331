"""What commands ask of a daemon, if one runs. None of it starts one."""

from __future__ import annotations

import msgspec

from edgellm.client import GLANCE_S, DaemonClient
from edgellm.contracts.status import LoadedModel
from edgellm.errors import EdgeError, NotFound
from edgellm.paths import Paths


class DaemonState(msgspec.Struct, frozen=True):
    """A running daemon, in words."""

    url: str
    pid: int
    version: str
    loaded: list[str]
    background: bool = False  # leaves when nobody wants anything of it


def loaded_models(paths: Paths) -> dict[str, LoadedModel]:
    """The models in memory, by full name. Nothing where the daemon cannot be asked: a list is no place to fail."""
    try:
        client = DaemonClient.find(paths, patience_s=GLANCE_S)
        if client is None:
            return {}
        with client:
            return {model.name: model for model in client.ps()}
    except EdgeError:
        return {}


def stop_if_loaded(paths: Paths, name: str) -> bool:
    """Unload a model before its file goes away; whether it was loaded. Raises DaemonError for a silent daemon."""
    client = DaemonClient.find(paths, any_version=True)
    if client is None:
        return False
    with client:
        try:
            return client.stop(name)
        except NotFound:  # damaged: no daemon can have it
            return False


def running_daemon(paths: Paths) -> DaemonState | None:
    """The running daemon, whatever its version. Raises DaemonError when it does not answer."""
    client = DaemonClient.find(paths, any_version=True)
    if client is None:
        return None
    with client:
        info = client.info
        names = [model.name for model in client.ps()]
        return DaemonState(info.url, info.pid, info.version, names, background=bool(info.settings))
