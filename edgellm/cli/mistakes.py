"""What was mistaken on the command line, in words: the option or argument, what it takes, the way out.

typer brings its own copy of click or uses the installed one, so there is no class of these errors to name here.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from edgellm.cli import habits
from edgellm.errors import InvalidRequest

_NOT_VALID = re.compile(r"(.*) is not a valid (\w+)\.?", re.DOTALL)
_EXTRA = re.compile(r"Got unexpected extra arguments?(?:\(s\))? \((.*)\)\.?", re.DOTALL)
_NOUNS = {"int": "a whole number", "integer": "a whole number", "float": "a number", "boolean": "true or false"}


def mistake(error: BaseException) -> InvalidRequest | None:
    """None for what is no mistake in the options."""
    say = getattr(error, "format_message", None)
    if not callable(say):
        return None
    context = getattr(error, "ctx", None)
    command = getattr(context, "command_path", "edgellm")
    help_hint = f"`{command} --help` shows what it takes"
    name = command.rpartition(" ")[2]
    option = getattr(error, "option_name", None)
    if option and hasattr(error, "possibilities"):
        near = habits.option_of(option, name, _options(context))
        return InvalidRequest(f"there is no option {option}", hint=near + help_hint)
    said = str(getattr(error, "message", "")) or str(say())
    if option:
        return _misused(option, said)
    found = _EXTRA.fullmatch(said)
    if found:
        return InvalidRequest(f"{command} has no place for {found[1]!r}", hint=habits.no_place(name) or help_hint)
    param = getattr(error, "param", None)
    if param is None:
        message = str(say()).rstrip(".")
        return InvalidRequest(message[:1].lower() + message[1:], hint=help_hint)
    return InvalidRequest(_wrong(param, said, command), hint=help_hint, param=getattr(param, "name", None))


def no_command(name: str, commands: Iterable[str]) -> InvalidRequest:
    """For a word that is none of the commands."""
    return InvalidRequest(
        f"there is no command {name}", hint=habits.command(name, commands) + "`edgellm --help` lists the commands"
    )


def _options(context: Any) -> list[str]:
    params = getattr(getattr(context, "command", None), "params", [])
    return [name for param in params for name in param.opts if name.startswith("-")]


def _misused(option: str, said: str) -> InvalidRequest:
    if "not take a value" in said:
        return InvalidRequest(f"{option} takes no value", hint=f"write {option} alone")
    return InvalidRequest(f"{option} needs a value", hint=f"write {option} VALUE")


def _wrong(param: Any, said: str, command: str) -> str:
    name = next((each for each in param.opts if each.startswith("--")), None) or _argument(param)
    found = _NOT_VALID.fullmatch(said)
    if found:
        return f"{name} takes {_NOUNS.get(found[2], found[2])}, not {found[1]}"
    if not said.startswith("Missing"):
        return f"{name}: {said[:1].lower()}{said[1:].rstrip('.')}"
    meaning = (getattr(param, "help", None) or "").rstrip(".")
    return f"{command} needs {name}" + (f": {meaning[:1].lower()}{meaning[1:]}" if meaning else "")


def _argument(param: Any) -> str:
    return str(param.metavar or param.name).strip("[].").upper()
