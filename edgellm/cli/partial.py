"""`edgellm list --partial` and `edgellm prune`: what unfinished pulls left, and away with it."""

from __future__ import annotations

from datetime import UTC, datetime

import msgspec

from edgellm.cli.output import Output
from edgellm.library.jobs import Partial, drop_partials, partials
from edgellm.library.store import Store
from edgellm.paths import default_paths
from edgellm.units import ago, size

COLUMNS = ("NAME", ">HERE", ">OF", "TOUCHED", "NOTE", "GOES ON WITH")


def list_partial(*, json: bool, quiet: bool) -> None:
    """Print the pulls that can go on, and the command that does it."""
    output = Output(json=json, quiet=quiet)
    found = partials(default_paths())
    if json:
        output.document({"partial": [msgspec.to_builtins(each) for each in found]})
    elif quiet:
        for each in found:
            output.line(each.name)
    elif found:
        output.table(COLUMNS, [_row(each) for each in found])
    else:
        output.note("no unfinished pulls")


def prune_store(*, json: bool, quiet: bool) -> None:
    """Delete unfinished pulls that nobody works on, and contents that no name mentions."""
    output = Output(json=json, quiet=quiet)
    paths = default_paths()
    freed = drop_partials(paths) + (Store(paths).prune() if paths.models.exists() else 0)
    if json:
        output.document({"freed": freed})
    else:
        output.note(f"{size(freed)} freed" if freed else "nothing to prune")


def _row(each: Partial) -> list[str]:
    age = (datetime.now(UTC) - each.touched).total_seconds()
    note = "running" if each.running else ""
    return [each.name, size(each.done), size(each.total), ago(age), note, _command(each)]


def _command(each: Partial) -> str:
    """What goes on with it, under the name it was to have: under another one, it would begin anew."""
    return f"edgellm pull {each.reference} --name {each.name}"
