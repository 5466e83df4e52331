"""What is wrong with a field of a request, in words: its name, and what it may be. No value is repeated."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Any

import msgspec
import msgspec.inspect as types

from edgellm.errors import InvalidRequest
from edgellm.units import bounds

_AT = re.compile(r" - at (`key` in )?`\$\.?(.*)`$", re.DOTALL)
_MISSING = re.compile(r"missing required field `(\w+)`")
_UNKNOWN = re.compile(r"contains unknown field `(.+)`", re.DOTALL)
_EXPECTED = re.compile(r"Expected `([\w| ]+)`(?:, got `(\w+)`)?(?: (?:of length )?([<>]=?) (.+))?")
_NOUNS = {
    "int": "a whole number",
    "float": "a number",
    "str": "a string",
    "bool": "true or false",
    "array": "a list",
    "object": "an object",
    "null": "null",
}
_WORDS = {">=": "at least", ">": "more than", "<=": "at most", "<": "less than"}


def invalid(error: msgspec.ValidationError, kind: type) -> InvalidRequest:
    """msgspec's words for what is no `kind`, turned into ours: "Expected `int` >= 1 - at `$.n`" and the like."""
    message = str(error)
    at = _AT.search(message)
    found = at.group(2) if at else ""
    path = found.replace("[...]", "")  # which of a mapping's values, msgspec does not say
    if at:
        message = message[: at.start()]
    missing = _MISSING.search(message)
    if missing:
        path = f"{path}.{missing.group(1)}" if path else missing.group(1)
        return InvalidRequest(f"{path} is required", param=path)
    unknown = _UNKNOWN.search(message)
    if unknown:
        path = f"{path}.{unknown.group(1)}" if path else unknown.group(1)
        return InvalidRequest(f"{path[:200]} is not supported", hint="leave it out", param=path[:200])
    within = "a name in " if at and at.group(1) else "a value in " if found != path else ""
    told = _told(message, [] if at and at.group(1) else _types(kind, found.replace("[...]", "[any]")))
    return InvalidRequest(f"{within}{path or 'the body'} {told}", param=path or None)


def _told(message: str, fitting: list[types.Type]) -> str:
    if message.startswith("Invalid "):  # enum value, or value of a tag
        allowed = [str(v) for one in fitting if isinstance(one, types.LiteralType) for v in one.values]
        return f"must be {' or '.join(allowed) or 'one of the allowed values'}"
    expected = _EXPECTED.fullmatch(message)
    if expected is None:
        return f"is not valid: {message[:1].lower()}{message[1:]}".replace("`", "")
    names = expected[1].split(" | ")
    needless = {"null"} if len(names) > 1 else set()  # the same as leaving the field out
    needless |= {"int"} if "float" in names else set()
    *others, last = (_NOUNS.get(name, name) for name in names if name not in needless)
    noun = f"{', '.join(others)} or {last}" if others else last
    if expected[2]:
        got = "a fraction" if expected[2] == "float" else _NOUNS.get(expected[2], expected[2])
        return f"must be {noun}, not {got}"
    if not expected[3]:
        return f"must be {noun}"
    if "length" in message:
        unit = "entries" if names == ["array"] else "characters"
        return f"must be {noun} of {_WORDS[expected[3]]} {expected[4]} {unit}".replace(" 1 characters", " 1 character")
    ranges = [one for one in fitting if isinstance(one, types.IntType | types.FloatType)]
    if len(ranges) == 1:  # all that is allowed, not only the end that was missed
        return f"must be {bounds(noun, ranges[0].ge, ranges[0].gt, ranges[0].le)}"
    return f"must be {noun} of {_WORDS[expected[3]]} {float(expected[4]):.10g}"


def _types(kind: type, path: str) -> list[types.Type]:
    """What the field of that path takes; path: `messages[0].role`."""
    found: list[types.Type] = [types.type_info(kind)]
    for name in re.findall(r"\w+", path):
        found = [inner for outer in _apart(found) for inner in _inside(outer, name)]
    return list(_apart(found))


def _apart(several: Iterable[types.Type]) -> Iterator[types.Type]:
    for one in several:
        yield from _apart(one.types) if isinstance(one, types.UnionType) else (one,)


def _inside(outer: types.Type, name: str) -> list[Any]:
    if isinstance(outer, types.ListType | types.VarTupleType):
        return [outer.item_type]
    if isinstance(outer, types.DictType):
        return [outer.value_type]
    fields = outer.fields if isinstance(outer, types.StructType) else ()
    return [field.type for field in fields if field.encode_name == name]
