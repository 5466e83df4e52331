"""The socket the daemon listens on: bound before anything slow is imported, and never open to others by accident."""

from __future__ import annotations

import contextlib
import errno
import ipaddress
import socket
from collections.abc import Sequence
from pathlib import PurePath

from edgellm.config import Settings
from edgellm.errors import ConfigError, DaemonError

_BACKLOG = 512  # connections the kernel keeps while the web framework is still being imported


def bind(settings: Settings, *, any_port: bool, keyed: bool = False) -> socket.socket:
    """A listening socket. `any_port`: where the port is taken, another will do (clients read it from daemon.json).
    `keyed`: there are keys besides those of the settings.

    Raises ConfigError when other machines could connect and no key is set, DaemonError when it cannot be bound.
    """
    refuse_open_door(settings, keyed)
    try:
        return _listen(settings.host, settings.port)
    except OSError as error:
        if error.errno == errno.EADDRINUSE and any_port:
            return _listen(settings.host, 0)
        raise _unbound(settings, error) from error


def refuse_open_door(settings: Settings, keyed: bool) -> None:
    """Raise ConfigError if these settings would let everybody on the network in."""
    if not keyed and not settings.api_keys and not is_loopback(settings.host):
        raise ConfigError(
            f"listening on {settings.host} lets other machines in, and no API key is set",
            hint="make one with `edgellm keys add NAME` (or EDGELLM_API_KEYS, --api-key), or listen on 127.0.0.1",
            param="host",
        )


def is_loopback(host: str) -> bool:
    """Whether an address to listen on can be reached from this machine only."""
    return host.lower() == "localhost" or (is_address(host) and _address(host).is_loopback)


def is_address(text: str) -> bool:
    """Whether it is an IP address, with or without brackets and zone."""
    try:
        _address(text)
    except ValueError:
        return False
    return True


def url_of(listening: socket.socket) -> str:
    """Where programs on this machine reach it."""
    host, port = listening.getsockname()[:2]
    address = ipaddress.ip_address(host)
    if address.is_unspecified:
        host = "::1" if address.version == 6 else "127.0.0.1"
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def _listen(host: str, port: int) -> socket.socket:
    name = host.strip("[]")
    try:
        name.encode("idna")
    except UnicodeError as error:  # too long or too strange: create_server would say so in its own way
        raise OSError(errno.EINVAL, "no host has such a name") from error
    family = socket.AF_INET6 if ":" in name else socket.AF_INET
    return socket.create_server((name, port), family=family, backlog=_BACKLOG)


def _address(text: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address:
    return ipaddress.ip_address(text.strip("[]").partition("%")[0])


def _unbound(settings: Settings, error: OSError) -> DaemonError | ConfigError:
    host, port = settings.host, settings.port
    if error.errno == errno.EADDRINUSE:
        whom, own = _by_whom(port)
        ends = "`edgellm stop --all` with the EDGELLM_HOME that it was started with ends it; or " if own else ""
        return DaemonError(
            f"port {port} on {host} is taken by {whom}", hint=f"{ends}choose another with --port, or 0 for any free one"
        )
    if error.errno == errno.EACCES:
        return DaemonError(f"port {port} needs rights this user lacks", hint="choose one above 1023 with --port")
    return ConfigError(
        f"cannot listen on {host[:100]}: {error.strerror or error}",
        hint="`host` is an address of this machine",
        param="host",
    )


def _by_whom(port: int) -> tuple[str, bool]:
    """Who listens there, where the system tells; and whether that is a daemon of ours: another home's, for one home has
    one only.
    """
    import psutil

    with contextlib.suppress(psutil.Error, OSError, RuntimeError):
        for connection in psutil.net_connections(kind="tcp"):
            if connection.status == psutil.CONN_LISTEN and connection.laddr.port == port and connection.pid:
                own = is_daemon(connection.pid)
                name = "an edgellm daemon of another home" if own else psutil.Process(connection.pid).name()
                return f"{name} (pid {connection.pid})", own
    return "another program", False


def is_daemon(pid: int) -> bool:
    """Whether a process is a daemon of ours, as far as the system tells."""
    import psutil

    with contextlib.suppress(psutil.Error, OSError, ValueError):
        return is_ours(psutil.Process(pid).cmdline())
    return False


def is_ours(command: Sequence[str]) -> bool:
    """Whether a command line is one of those that start a daemon: `edgellm serve`, or the module of one in the
    background.
    """
    served = "serve" in command and any(PurePath(part).stem == "edgellm" for part in command)
    return served or "edgellm.server.daemon" in command
