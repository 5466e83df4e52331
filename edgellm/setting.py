"""A setting by itself: what it is called where, what it takes, and what is said of a value that it does not take."""

from __future__ import annotations

import math
import os
import reprlib
from typing import Annotated, Any, Literal, get_args, get_origin

import msgspec
from msgspec import Meta

from edgellm.errors import ConfigError
from edgellm.units import bounds

PREFIX = "EDGELLM_"
SECRET = frozenset({"api_keys"})
_OPTIONS = {  # of other names than their settings
    "max_sequences": "--parallel",
    "kv_type": "--kv",
    "api_keys": "--api-key",
    "keep_alive_s": "--keep-alive",
}
_TRUTH = dict.fromkeys(("true", "1", "yes", "on"), True) | dict.fromkeys(("false", "0", "no", "off"), False)


class Field(msgspec.Struct, frozen=True):
    """One setting as documentation: what it means, what it may be; `hint` is its annotated type."""

    name: str
    meaning: str
    default: Any
    allowed: str
    hint: Any

    @property
    def kind(self) -> Any:
        """The bare type: int, float, bool, str, a Literal or tuple[str, ...]."""
        return get_args(self.hint)[0]

    @property
    def variable(self) -> str:
        """The environment variable that sets it."""
        return PREFIX + self.name.upper()

    @property
    def secret(self) -> bool:
        """Its value is never shown."""
        return self.name in SECRET


def described(name: str, hint: Any, default: Any) -> Field:
    """The setting of that name, by its annotated type."""
    if get_origin(hint) is not Annotated:  # it may be left open: `Annotated[…] | None`
        hint = get_args(hint)[0]
    kind, meta = get_args(hint)
    return Field(name, meta.description, default, _allowed(kind, meta), hint)


def shown(field: Field, value: object) -> str:
    """A value as TOML for the screen; in parentheses, and no TOML, what is secret or not set."""
    if field.secret and isinstance(value, tuple):
        return f"({len(value)} set, not shown)" if value else "[]"
    if value is None:
        return "(not set)"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return _quoted(value)
    if isinstance(value, tuple):
        return "[" + ", ".join(_quoted(str(item)) for item in value) + "]"
    return f"{value:g}" if isinstance(value, float) else str(value)


def from_text(field: Field, text: str, source: str) -> object:
    """The value that `text` stands for; lists are comma separated. Raises ConfigError."""
    text = text.strip()
    try:
        if get_origin(field.kind) is tuple:
            return tuple(part.strip() for part in text.split(",") if part.strip())
        if field.kind is bool:
            return _TRUTH[text.lower()]
        return field.kind(text) if field.kind in (int, float) else text
    except (ValueError, KeyError) as error:
        raise _refused(field, text, source) from error


def checked(field: Field, value: object, source: str) -> object:
    """The value as the setting's type has it. Raises ConfigError."""
    try:
        converted: object = msgspec.convert(value, field.hint)
        msgspec.json.encode(converted)  # as it is told and handed on; bytes of a variable may be no text
    except (msgspec.ValidationError, UnicodeEncodeError) as error:
        raise _refused(field, value, source) from error
    if field.name == "threads" and isinstance(converted, int) and converted > _cpus():
        raise _refused(field, value, source)  # engines start them all at once, and crash where the system will not
    blank = isinstance(converted, tuple) and not all(item.strip() for item in converted)
    if blank or (isinstance(converted, float) and not math.isfinite(converted)):
        raise _refused(field, value, source)
    return converted


def _refused(field: Field, value: object, source: str) -> ConfigError:
    told = "with that value" if field.secret else f"= {reprlib.repr(value)}"
    name, what = field.name, f"{field.name} {told}, from {source},"
    if source == "flag":
        name = option(field.name)
        what = f"{name} {told.removeprefix('= ')}"
    return ConfigError(f"{what} is not allowed", hint=f"{name} takes {_taken(field)}", param=field.name)


def option(name: str) -> str:
    """What the command line calls a setting."""
    return _OPTIONS.get(name) or "--" + name.replace("_", "-")


def _taken(field: Field) -> str:
    """What a setting takes on this machine."""
    if field.name != "threads":
        return field.allowed
    return f"a whole number from 0 to {_cpus()}, the CPUs of this machine; 0 lets edgellm choose"


def _cpus() -> int:
    return os.cpu_count() or 1


def _allowed(kind: Any, meta: Meta) -> str:
    """In words, what a setting takes."""
    if get_origin(kind) is Literal:
        return "one of " + ", ".join(get_args(kind))
    if get_origin(kind) is tuple:
        return "a list of texts (comma separated in the environment)"
    if kind is bool:
        return "true or false"
    if kind is str:
        return "a text that is not empty" if meta.min_length else "a text"
    noun = "a whole number" if kind is int else "a number"
    return bounds(noun, meta.ge, meta.gt, meta.le)


def _quoted(text: str) -> str:
    return msgspec.json.encode(text).decode()
