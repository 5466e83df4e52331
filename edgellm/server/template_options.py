"""Template options: names that a model's chat template may read, `enable_thinking` first of all."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Literal

from edgellm.contracts.request import TemplateOptions
from edgellm.errors import InvalidRequest

Effort = Literal["none", "minimal", "low", "medium", "high", "xhigh"]
_MOST = 32
_CHARACTERS = 1000  # of a text
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,63}")
# What the template finds anyway: it must not be told otherwise.
_TAKEN = frozenset(
    {
        *("messages", "add_generation_prompt", "continue_final_message", "tools", "documents"),
        *("bos_token", "eos_token", "range", "dict", "namespace", "raise_exception", "strftime_now"),
    }
)


SCHEMA: dict[str, Any] = {  # the same as JSON Schema
    "type": "object",
    "maxProperties": _MOST,
    # The end is said twice: to Python, a line end may follow `$`.
    "propertyNames": {"pattern": f"^{_NAME.pattern}(?!\\n)$", "not": {"enum": sorted(_TAKEN)}},
    "additionalProperties": {
        "anyOf": [
            {"type": ["boolean", "null"]},
            {"type": "integer", "minimum": -(2**63), "exclusiveMaximum": 2**63},
            {"type": "number", "minimum": -(2.0**62), "maximum": 2.0**62},
            {"type": "string", "maxLength": _CHARACTERS},
        ]
    },
}


def checked_options(options: TemplateOptions, param: str) -> TemplateOptions:
    """`options`, if names and values are what a template may be given. Raises InvalidRequest naming `param`."""
    if len(options) > _MOST:
        raise InvalidRequest(f"{param} takes at most {_MOST} names", param=param)
    for name, value in options.items():
        if not _NAME.fullmatch(name) or name in _TAKEN:
            raise InvalidRequest(
                f"{param}: a name in it cannot be set",
                hint="names are letters, digits and underscores, and none of " + ", ".join(sorted(_TAKEN)),
                param=param,
            )
        where = f"{param}.{name}"
        if isinstance(value, str) and len(value) > _CHARACTERS:
            raise InvalidRequest(f"{where} has more than {_CHARACTERS:,} characters", param=where)
        if isinstance(value, int) and not -(2**63) <= value < 2**63:
            raise InvalidRequest(f"{where} must fit 64 bits", param=where)
    return options


def options_of(kwargs: Mapping[str, bool | int | float | str | None] | None, effort: Effort | None) -> TemplateOptions:
    """From OpenAI's `reasoning_effort`, and `chat_template_kwargs` as other local servers have it, which wins.

    An effort of "none" is "do not think", for which templates have names of their own.
    """
    asked: TemplateOptions = {}
    if effort == "none":
        asked = {"enable_thinking": False, "thinking": False}
    elif effort is not None:
        asked = {"reasoning_effort": effort}
    given = {name: value for name, value in (kwargs or {}).items() if value is not None}
    return asked | checked_options(given, "chat_template_kwargs")
