"""Text that a terminal may show.

Model output, file metadata and file names are untrusted: a terminal would act on escape sequences in them (set the
clipboard, rewrite the screen, reverse the reading order). Here they become visible signs instead.
"""

from __future__ import annotations

_PICTURES = {code: 0x2400 + code for code in range(32) if code not in (0x09, 0x0A)}  # ESC is shown as ␛, and so on
_UNSAFE: dict[int, int | None] = {
    **_PICTURES,
    0x0D: None,  # a carriage return overwrites its own line
    0x7F: 0x2421,
    **dict.fromkeys(range(0x80, 0xA0), 0xFFFD),  # C1: 0x9B is a CSI of one byte
    **dict.fromkeys((*range(0x202A, 0x202F), *range(0x2066, 0x206A)), 0xFFFD),  # bidirectional overrides
}
_MAX_LABEL = 300


def inert(text: str) -> str:
    """`text` with every control sequence made visible and harmless; newlines and tabs stay."""
    return text.translate(_UNSAFE)


def label(text: str, limit: int = _MAX_LABEL) -> str:
    """Untrusted text for one line: inert, without line breaks, cut to `limit` characters."""
    flat = " ".join(inert(text).split())
    return flat if len(flat) <= limit else flat[: limit - 1] + "…"
