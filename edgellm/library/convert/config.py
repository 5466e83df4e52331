"""Reading JSON that came with a model: every value is checked where it is read, and errors name file, key and value."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, NoReturn

from edgellm.formats import checkpoint
from edgellm.formats.files import bad

LARGEST_JSON: Final = 256 << 20  # bytes; the largest real tokenizer.json has some 33 MB
_DAMAGED: Final = "the folder is incomplete or damaged: fetch the model again"
_MISSING: Final = object()


def read_json(path: Path) -> dict[str, Any]:
    """The object in a JSON file. Raises BadModelFile."""
    return checkpoint.read_json(path, LARGEST_JSON)


def read_json_if_there(path: Path) -> dict[str, Any]:
    """The same, or nothing where there is no such file."""
    return read_json(path) if path.is_file() else {}


class Config:
    """A JSON object of a known file, read key by key. A null counts as absent."""

    def __init__(self, path: Path, values: Mapping[str, Any]) -> None:
        self.path = path
        self._values = values

    def get(self, key: str) -> Any:
        """Unchecked; None where absent."""
        return self._values.get(key)

    def has(self, key: str) -> bool:
        return self._values.get(key) is not None

    def whole(self, key: str, default: Any = _MISSING, *, least: int = 1) -> int:
        """A whole number from `least` to 2^31 - 1."""
        value = self._value(key, default)
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if type(value) is not int or not least <= value < 2**31:
            self.bad(key, f"expected a whole number of at least {least}")
        return int(value)

    def number(self, key: str, default: Any = _MISSING) -> float:
        """A finite number."""
        value = self._value(key, default)
        if type(value) not in (int, float) or not math.isfinite(value):
            self.bad(key, "expected a number")
        return float(value)

    def flag(self, key: str, default: bool = False) -> bool:
        value = self._value(key, default)
        if not isinstance(value, bool):
            self.bad(key, "expected true or false")
        return bool(value)

    def text(self, key: str, default: str = "") -> str:
        value = self._value(key, default)
        if not isinstance(value, str):
            self.bad(key, "expected a text")
        return str(value)

    def numbers(self, key: str) -> list[float]:
        """A list of finite numbers."""
        value = self._value(key, _MISSING)
        if not isinstance(value, list) or not all(type(v) in (int, float) and math.isfinite(v) for v in value):
            self.bad(key, "expected a list of numbers")
        return [float(v) for v in value]

    def within(self, key: str) -> Config:
        """The object under `key`; empty where absent."""
        value = self._value(key, {})
        if not isinstance(value, dict):
            self.bad(key, "expected an object")
        return Config(self.path, value)

    def bad(self, key: str, why: str, hint: str = _DAMAGED) -> NoReturn:
        """Raise BadModelFile for that key."""
        raise bad(self.path, key, self._values.get(key, "absent"), why, hint)

    def _value(self, key: str, default: Any) -> Any:
        value = self._values.get(key)
        if value is not None:
            return value
        if default is _MISSING:
            self.bad(key, "it is needed")
        return default
