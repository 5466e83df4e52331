"""Reads what people write for times."""

from __future__ import annotations

import math
import re

from edgellm.errors import InvalidRequest

_UNITS = {"": 1.0, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0}
FOREVER = -1.0


def duration(text: str | None) -> float | None:
    """Seconds in "300", "5m", "2h", "1d"; below 0 for "forever" or any negative number. Raises InvalidRequest."""
    if text is None:
        return None
    word = text.strip().lower()
    if word in ("forever", "always"):
        return FOREVER
    found = re.fullmatch(r"(-?\d+(?:\.\d+)?)\s*([smhd]?)", word)
    value = float(found[1]) * _UNITS[found[2]] if found else math.nan
    if not math.isfinite(value):
        raise InvalidRequest(f"{text!r} is not a time", hint="write seconds, or 5m, 2h, forever", param="keep_alive")
    return value if value >= 0 else FOREVER
