"""Writes docs/cli.md from the commands, the settings and the errors themselves; `--check` fails when it is stale."""

from __future__ import annotations

import argparse
import inspect
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, get_args, get_type_hints

from typer.models import ArgumentInfo, OptionInfo

from edgellm import errors
from edgellm.cli.main import app, root
from edgellm.config import fields
from edgellm.setting import shown

TARGET = Path(__file__).parent.parent / "docs" / "cli.md"
HEADER = """# The command line

<!-- Written by tools/cli_reference.py; `make docs` writes it anew. -->

Data goes to stdout, progress, warnings and errors to stderr. `--json` prints one JSON document on stdout, also for
an error: `{"error": {"code", "message", "hint"}}`. Colour is used on terminals only, and never with `NO_COLOR`.
`--debug` anywhere, or `EDGELLM_DEBUG=1`, shows the traceback of an error. `EDGELLM_HOME` puts everything that
edgellm keeps under one folder. `edgellm --install-completion` teaches your shell to complete commands and options.
"""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="compare instead of writing")
    check = parser.parse_args().check
    text = reference()
    if not check:
        TARGET.parent.mkdir(exist_ok=True)
        TARGET.write_text(text, encoding="utf-8", newline="\n")
        return 0
    if TARGET.exists() and TARGET.read_text(encoding="utf-8") == text:
        return 0
    print(f"{TARGET.name} is stale: run `make docs`", file=sys.stderr)
    return 1


def reference() -> str:
    """The whole page."""
    parts = [HEADER, "## edgellm\n", *options(root)]
    for command in app.registered_commands:
        assert command.callback is not None
        name = command.name or command.callback.__name__
        parts += [f"## {usage(name, command.callback)}\n", f"{inspect.getdoc(command.callback)}\n"]
        parts += options(command.callback)
    return "\n".join([*parts, *settings(), *exit_codes()]).rstrip() + "\n"


def usage(name: str, callback: Callable[..., Any]) -> str:
    """`edgellm run NAME [PROMPT]...`"""
    words = [info.metavar or parameter.upper() for parameter, _, info in parameters(callback) if is_argument(info)]
    return " ".join(["edgellm", name, *words])


def options(callback: Callable[..., Any]) -> Iterator[str]:
    """A table of the arguments and options of a command, if it has any."""
    rows = []
    for name, kind, info in parameters(callback):
        if is_argument(info):
            rows.append((f"`{info.metavar or name.upper()}`", info.help or ""))
        else:
            value = "" if kind is bool else " " + (info.metavar or value_of(kind))
            # Within Annotated, typer keeps the first spelling where a default would stand.
            spellings = [info.default, *(info.param_decls or ())]
            written = ", ".join(f"`{spelling}{value}`" for spelling in spellings)
            rows.append((written, info.help or ""))
    if rows:
        yield table(("option", "meaning"), rows)


def parameters(callback: Callable[..., Any]) -> Iterator[tuple[str, Any, ArgumentInfo | OptionInfo]]:
    """Name, bare type and description of each parameter that the user sees."""
    for name, hint in get_type_hints(callback, include_extras=True).items():
        kind, *extra = get_args(hint) or (hint,)
        for info in extra:
            if isinstance(info, ArgumentInfo | OptionInfo):
                yield name, kind, info


def is_argument(info: ArgumentInfo | OptionInfo) -> bool:
    return isinstance(info, ArgumentInfo)


def value_of(kind: Any) -> str:
    """What stands for an option's value."""
    kinds = {kind, *get_args(kind)}
    return "N" if int in kinds else "X" if float in kinds else "TEXT"


def settings() -> Iterator[str]:
    yield "## Settings\n"
    yield (
        "Defaults < `config.toml` (`edgellm config --path` says where) < environment < options. The environment\n"
        "variable of a setting is `EDGELLM_` and its name in capitals; lists are comma separated there.\n"
    )
    rows = [
        (f"`{field.name}`", f"`{shown(field, field.default)}`", f"{field.meaning}. Takes {field.allowed}.")
        for field in fields().values()
    ]
    yield table(("setting", "default", "meaning"), rows)


def exit_codes() -> Iterator[str]:
    yield "## Exit codes\n"
    names: dict[int, list[str]] = {}
    for name, kind in sorted(errors.by_code().items()):
        names.setdefault(kind.exit_code, []).append(f"`{name}`")
    rows = [("0", "success")]
    rows += [(str(code), ", ".join(listed)) for code, listed in names.items()]
    rows.append(("141", "the reader of stdout has gone (`| head`)"))
    yield table(("exit code", "error code"), sorted(rows, key=lambda row: int(row[0])))


def table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    """A Markdown table."""
    lines = [head, tuple("---" for _ in head), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines) + "\n"


if __name__ == "__main__":
    sys.exit(main())
