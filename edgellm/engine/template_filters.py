"""Operators, filters and string methods of the template sandbox that could make something large from something small.

Each checks the size of its result before making it. The rest of Jinja's filters are wrapped by the sandbox and checked
afterwards, which is enough where a result is at most a few times its input.
"""

from __future__ import annotations

import json
import operator
import re
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import jinja2.filters
from jinja2 import pass_environment
from jinja2.sandbox import SandboxedEnvironment, SandboxedFormatter

from edgellm.engine.template_limits import INT_BITS, Meter, TemplateLimit

_OPERATORS: dict[str, Callable[[Any, Any], Any]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "/": operator.truediv,
    "//": operator.floordiv,
    "%": operator.mod,
    "**": operator.pow,
}
OPERATORS = frozenset(_OPERATORS)
_WIDTH = 1000  # widest field in a format, deepest indent
_ITEMS = 100_000  # longest range, most slices
_STRIP = 256  # most characters in a set to strip: stripping costs text x set
_EXPONENT = 64
_SEARCH = 1 << 28  # text x needle when searching backwards, where Python's worst case is their product
_DIRECTIVE = re.compile(r"%[^A-Za-z%]*")

# Jinja's own filters that are kept. Left out: those that need a regular expression over hostile text, escape HTML for
# browsers, draw random numbers or look up attributes by computed name. No chat template needs them.
PLAIN_FILTERS = """
    abs capitalize count d default dictsort e escape first float groupby int items last length list lower map max min
    reject rejectattr reverse select selectattr sort string title truncate unique upper wordcount
    """


class Metered(Protocol):
    """The environment, as far as the filters know it."""

    meter: Meter


def operate(meter: Meter, symbol: str, left: Any, right: Any) -> Any:
    """`left symbol right`, refused where the result would be too large."""
    if symbol == "*":
        _check_product(meter, left, right)
    elif symbol == "**" and not (isinstance(right, (int, float)) and abs(right) <= _EXPONENT):
        raise TemplateLimit("a power with a large or unknown exponent")
    elif symbol == "%" and isinstance(left, str):
        return printf(meter, left, right)
    return meter.made(_OPERATORS[symbol](left, right))


def _check_product(meter: Meter, left: Any, right: Any) -> None:
    for many, times in ((left, right), (right, left)):
        if isinstance(many, (str, list, tuple)) and isinstance(times, int):
            meter.fits(len(many) * times)
    if isinstance(left, int) and isinstance(right, int) and left.bit_length() + right.bit_length() > INT_BITS + 1:
        raise TemplateLimit(f"a number would grow past {INT_BITS} bits")


def printf(meter: Meter, pattern: str, values: Any) -> str:
    """`pattern % values`."""
    # A key in parentheses may hold anything, so with one the whole pattern is looked at.
    directives = pattern if "%(" in pattern else "".join(_DIRECTIVE.findall(pattern))
    if "*" in directives:
        raise TemplateLimit("a format whose width is an argument")
    _check_widths(directives)
    _check_fields(meter, pattern, pattern.count("%"), values)
    text: str = meter.made(pattern % values)
    return text


def formatted(env: SandboxedEnvironment, meter: Meter, pattern: str) -> Callable[..., str]:
    """`pattern.format`, with attribute access through the sandbox."""

    class Bounded(SandboxedFormatter):
        def format_field(self, value: Any, format_spec: str) -> str:
            _check_widths(format_spec)
            return format(value if isinstance(value, (int, float)) else meter.text(value), format_spec)

    def call(*args: Any, **kwargs: Any) -> str:
        _check_fields(meter, pattern, pattern.count("{"), [args, kwargs])
        text: str = meter.made(Bounded(env).vformat(pattern, args, kwargs))
        return text

    return call


def _check_fields(meter: Meter, pattern: str, fields: int, values: Any) -> None:
    meter.fits(len(pattern) + (fields * (_WIDTH + meter.weight(values)) if fields > 1 else 0))


def _check_widths(pattern: str) -> None:
    if any(len(digits) > 4 or int(digits) > _WIDTH for digits in re.findall("[0-9]+", pattern)):
        raise TemplateLimit(f"a format with a width above {_WIDTH}")


def safe_range(*args: int) -> range:
    """`range`, of at most 100,000 items."""
    values = range(*args)
    if len(values) > _ITEMS:
        raise TemplateLimit(f"a range of more than {_ITEMS:,} items")
    return values


def check_method(meter: Meter, owner: Any, name: str, args: Sequence[Any]) -> None:
    """Refuse a method call of a built-in type whose result or cost would be out of proportion to its input."""
    if not isinstance(owner, str):
        return
    if name in ("center", "ljust", "rjust", "zfill") and args:
        meter.fits(args[0])
    elif name == "replace" and len(args) > 1:
        check_replace(meter, owner, args[0], args[1])
    elif name == "join" and args:
        parts = meter.made(args[0])
        meter.fits(len(owner) * len(parts) + meter.weight(parts))
    elif name in ("strip", "lstrip", "rstrip") and args and args[0] is not None:
        check_strip(args[0])
    elif name in ("rfind", "rindex", "rpartition", "rsplit") and args:
        check_search(owner, args[0])


def check_replace(meter: Meter, text: str, old: str, new: str) -> None:
    """Refuse a replacement whose result would be too long."""
    meter.fits(len(text) + text.count(old) * max(0, len(new) - len(old)))


def check_strip(characters: str) -> None:
    """Refuse to strip a large set of characters."""
    if len(characters) > _STRIP:
        raise TemplateLimit(f"stripping a set of more than {_STRIP} characters")


def check_search(text: str, needle: object) -> None:
    """Refuse a backward search that could take long."""
    if isinstance(needle, str) and len(text) * len(needle) > _SEARCH:
        raise TemplateLimit("searching backwards for a long text")


@pass_environment
def trim(env: Metered, value: Any, chars: str | None = None) -> str:
    """Jinja's `trim`."""
    if chars is not None:
        check_strip(chars)
    return env.meter.text(value).strip(chars)


@pass_environment
def center(env: Metered, value: Any, width: int = 80) -> str:
    """Jinja's `center`."""
    env.meter.fits(width)
    return env.meter.text(value).center(width)


@pass_environment
def replace(env: Metered, value: Any, old: Any, new: Any, count: int | None = None) -> str:
    """Jinja's `replace`."""
    text, old_text, new_text = (env.meter.text(part) for part in (value, old, new))
    check_replace(env.meter, text, old_text, new_text)
    return text.replace(old_text, new_text, -1 if count is None else count)


@pass_environment
def join(env: Any, value: Any, d: str = "", attribute: str | int | None = None) -> str:
    """Jinja's `join`."""
    meter: Meter = env.meter
    items = meter.made(iter(value))
    if attribute is not None:
        items = map(jinja2.filters.make_attrgetter(env, attribute), items)
    parts = [meter.text(item) for item in items]
    meter.fits(len(d) * len(parts) + sum(map(len, parts)))
    return meter.text(d).join(parts)


@pass_environment
def add_up(env: Any, value: Any, attribute: str | int | None = None, start: Any = 0) -> Any:
    """Jinja's `sum`, adding through the checked operator."""
    items = value if attribute is None else map(jinja2.filters.make_attrgetter(env, attribute), value)
    for item in items:
        start = operate(env.meter, "+", start, item)
    return start


@pass_environment
def indent(env: Metered, s: Any, width: int | str = 4, first: bool = False, blank: bool = False) -> str:
    """Jinja's `indent`."""
    text = env.meter.text(s)
    step = len(width) if isinstance(width, str) else width
    if step > _WIDTH:
        raise TemplateLimit(f"an indent above {_WIDTH}")
    env.meter.fits(len(text) + step * (len(text.splitlines()) + 2))
    return jinja2.filters.do_indent(text, width, first, blank)


@pass_environment
def printf_filter(env: Metered, value: Any, *args: Any, **kwargs: Any) -> str:
    """Jinja's `format`: printf style."""
    return printf(env.meter, env.meter.text(value), kwargs or args)


@pass_environment
def batch(env: Metered, value: Any, linecount: int, fill_with: Any = None) -> list[Any]:
    """Jinja's `batch`."""
    if linecount > _ITEMS:
        raise TemplateLimit(f"batches of more than {_ITEMS:,} items")
    return list(jinja2.filters.do_batch(env.meter.made(iter(value)), linecount, fill_with))


@pass_environment
def slices(env: Metered, value: Any, slices: int, fill_with: Any = None) -> list[Any]:
    """Jinja's `slice`."""
    if slices > _ITEMS:
        raise TemplateLimit(f"more than {_ITEMS:,} slices")
    return list(jinja2.filters.sync_do_slice(env.meter.made(iter(value)), slices, fill_with))


def rounded(value: float, precision: int = 0, method: Any = "common") -> float:
    """Jinja's `round`."""
    if abs(precision) > _EXPONENT:
        raise TemplateLimit(f"rounding to more than {_EXPONENT} digits")
    return jinja2.filters.do_round(value, precision, method)


def plain(value: Any) -> Any:
    """`safe`, where nothing is ever escaped: the value itself."""
    return value


@pass_environment
def to_json(
    env: Metered,
    value: Any,
    ensure_ascii: bool = False,  # noqa: ARG001 - accepted, see below
    indent: int | str | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    r"""JSON as models were trained on it: no HTML escapes, characters as they are.

    `ensure_ascii` is taken and ignored: models read characters better than `\u` escapes, and escapes would
    disguise the marks that keep user text from becoming control tokens.
    """
    meter = env.meter
    if indent is not None and (len(indent) if isinstance(indent, str) else indent) > 16:
        raise TemplateLimit("JSON indented by more than 16")
    for separator in separators or ():
        meter.fits(len(separator) * meter.weight(value))
    encoder = json.JSONEncoder(ensure_ascii=False, indent=indent, separators=separators, sort_keys=sort_keys)
    return meter.joined(encoder.iterencode(value))


OWN_FILTERS: dict[str, Callable[..., Any]] = {
    "batch": batch,
    "center": center,
    "format": printf_filter,
    "indent": indent,
    "join": join,
    "replace": replace,
    "round": rounded,
    "safe": plain,
    "slice": slices,
    "sum": add_up,
    "tojson": to_json,
    "trim": trim,
}
