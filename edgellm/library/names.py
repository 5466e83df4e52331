"""Model names: `name` or `name:tag`. The only strings that ever become paths in the store, hence the strict grammar."""

from __future__ import annotations

import re
from typing import Final

import msgspec

from edgellm.errors import InvalidName

DEFAULT_TAG: Final = "latest"
_PART: Final = r"[a-z0-9][a-z0-9._-]{0,63}"
_NAME: Final = re.compile(rf"({_PART})(?::({_PART}))?")
# Windows opens a device for these, whatever the extension, and drops trailing dots: stores stay portable.
_DEVICE: Final = re.compile(r"(con|prn|aux|nul|com[0-9]|lpt[0-9])(\..*)?")
_RULE: Final = "a name is letters a-z, digits, and . _ - inside, with an optional tag: qwen3 or qwen3:4b"


class ModelName(msgspec.Struct, frozen=True, order=True):
    """A checked name; `str()` gives `name:tag`."""

    name: str
    tag: str = DEFAULT_TAG

    def __str__(self) -> str:
        return f"{self.name}:{self.tag}"


def parse_name(text: str) -> ModelName:
    """The name that `text` spells. Raises InvalidName, whether or not such a model exists."""
    found = _NAME.fullmatch(text)
    if found is None:
        lower = text.strip().lower()
        mended = lower if lower != text and _NAME.fullmatch(lower) else None
        raise InvalidName(
            f"{_shown(text)} is not a model name",
            hint=f"did you mean {mended}?" if mended else _RULE,
            param="model",
        )
    name, tag = found[1], found[2] or DEFAULT_TAG
    for part in (name, tag):
        if part.endswith(".") or _DEVICE.fullmatch(part):
            raise InvalidName(
                f"{_shown(text)} is not a model name: {part} cannot be a file on every system",
                hint="choose another name",
                param="model",
            )
    return ModelName(name, tag)


def name_from_file(stem: str) -> ModelName | None:
    """A name derived from a file's stem (`SmolLM2 135M.Q4_1` gives `smollm2-135m.q4_1`); None where nothing is left."""
    cleaned = re.sub(r"[^a-z0-9._-]+", "-", stem.lower()).lstrip("._-")[:64].rstrip("._-")
    try:
        return parse_name(cleaned)
    except InvalidName:
        return None


def _shown(text: str) -> str:
    """What the user wrote, escaped and short."""
    return repr(text if len(text) <= 80 else text[:77] + "…")
