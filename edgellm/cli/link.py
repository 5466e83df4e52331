"""What the library's commands ask of a daemon, if one runs. None of it starts one.

The client brings an HTTP library, so it is imported only where daemon.json says that there may be a daemon.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from edgellm.contracts.backend import LoadedModel
from edgellm.errors import EdgeError, NotFound
from edgellm.paths import Paths

if TYPE_CHECKING:
    from edgellm.client import DaemonClient


class DaemonState(msgspec.Struct, frozen=True):
    """A running daemon, in words."""

    url: str
    pid: int
    version: str
    loaded: list[str]


def find_client(paths: Paths, *, any_version: bool = False) -> DaemonClient | None:
    """The running daemon; None when there is none. Raises DaemonError when it is of another version or silent."""
    if not (paths.runtime / "daemon.json").exists():
        return None
    from edgellm.client import DaemonClient

    return DaemonClient.find(paths, any_version=any_version)


def loaded_models(paths: Paths) -> dict[str, LoadedModel]:
    """The models in memory, by full name. Nothing where the daemon cannot be asked: a list is no place to fail."""
    try:
        client = find_client(paths)
        if client is None:
            return {}
        with client:
            return {model.name: model for model in client.ps()}
    except EdgeError:
        return {}


def stop_if_loaded(paths: Paths, name: str) -> bool:
    """Unload a model before its file goes away; whether it was loaded. Raises DaemonError for a silent daemon."""
    client = find_client(paths, any_version=True)
    if client is None:
        return False
    with client:
        try:
            return client.stop(name)
        except NotFound:  # damaged: no daemon can have it
            return False


def running_daemon(paths: Paths) -> DaemonState | None:
    """The running daemon, whatever its version. Raises DaemonError when it does not answer."""
    client = find_client(paths, any_version=True)
    if client is None:
        return None
    with client:
        info = client.info
        return DaemonState(info.url, info.pid, info.version, [model.name for model in client.ps()])
