"""`edgellm config`: every setting, its source and its meaning, as TOML that could be pasted into the file."""

from __future__ import annotations

import contextlib

from edgellm.cli.output import Output
from edgellm.config import Resolved, fields, load_settings
from edgellm.errors import ConfigError
from edgellm.paths import Paths, default_paths
from edgellm.platform import make_private_folder
from edgellm.setting import Field, shown
from edgellm.spelling import meant


def show_settings(name: str | None, *, path: bool, json: bool) -> None:
    """Print all settings, the value of one, or (`path`) where the file belongs."""
    output = Output(json=json)
    paths = default_paths()
    if path:
        _show_path(paths, output)
        return
    resolved = load_settings(paths, {})
    table = fields()
    if name is not None:
        _show_one(_named(name, table), resolved, output)
    elif json:
        output.document({"file": str(paths.config_file), "settings": _documents(table, resolved)})
    else:
        _show_all(paths, table, resolved, output)


def _show_path(paths: Paths, output: Output) -> None:
    if output.json:
        output.document({"file": str(paths.config_file), "exists": paths.config_file.exists()})
    else:
        with contextlib.suppress(OSError):  # so that a shell can write there; where it cannot, that says why
            make_private_folder(paths.config_file.parent)
        output.line(str(paths.config_file))


def _show_all(paths: Paths, table: dict[str, Field], resolved: Resolved, output: Output) -> None:
    there = "" if paths.config_file.exists() else " (not there; write it to change what follows)"
    output.line(f"# {paths.config_file}{there}")
    for name, field in table.items():
        source = resolved.sources[name]
        output.line()
        output.line(f"# {field.meaning}")
        value = shown(field, getattr(resolved.settings, name))
        where = "config.toml" if source == str(paths.config_file) else source
        # What stands for a secret, or for nothing, is no TOML.
        output.line(f"{'# ' if value.startswith('(') else ''}{name} = {value}  # {where}")


def _show_one(field: Field, resolved: Resolved, output: Output) -> None:
    value = getattr(resolved.settings, field.name)
    if output.json:
        output.document(_document(field, resolved))
    else:
        output.line(value if isinstance(value, str) else shown(field, value))


def _named(name: str, table: dict[str, Field]) -> Field:
    key = name.lower().removeprefix("edgellm_").replace("-", "_")
    if key not in table:
        raise ConfigError(f"no setting named {name}", hint=f"{meant(key, table)}`edgellm config` lists all")
    return table[key]


def _documents(table: dict[str, Field], resolved: Resolved) -> dict[str, object]:
    return {name: _document(field, resolved) for name, field in table.items()}


def _document(field: Field, resolved: Resolved) -> dict[str, object]:
    value = getattr(resolved.settings, field.name)
    return {
        "value": shown(field, value) if field.secret else value,
        "source": resolved.sources[field.name],
        "default": field.default,
        "meaning": field.meaning,
        "allowed": field.allowed,
        "environment": field.variable,
    }
