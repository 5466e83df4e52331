"""How figures are written for people: binary sizes, token counts, durations. One voice everywhere."""

from __future__ import annotations

KIB, MIB, GIB = 1024, 1024**2, 1024**3


def size(count: int) -> str:
    """Bytes as "812 KiB", "94 MiB" or "2.5 GiB"; a tenth is shown from 1 GiB up."""
    if count >= 1000 * MIB:
        return f"{count / GIB:.1f} GiB"
    if count >= 1000 * KIB:
        return f"{max(1, round(count / MIB))} MiB"
    if count >= KIB:
        return f"{round(count / KIB)} KiB"
    return f"{count} B"


def rate(bytes_s: float) -> str:
    """Bytes a second as "31 MiB/s" or "2.1 GiB/s"."""
    return f"{size(int(bytes_s))}/s"


def parameters(count: int) -> str:
    """A parameter count as "135M", "4.0B" or "120B"."""
    if count >= 99_950_000_000:
        return f"{count / 1e9:.0f}B"
    if count >= 999_500_000:
        return f"{count / 1e9:.1f}B"
    if count >= 999_500:
        return f"{count / 1e6:.0f}M"
    return f"{count / 1e3:.0f}K" if count >= 1000 else str(count)


def number(count: int) -> str:
    """A count with thousands separated: "8,192"."""
    return f"{count:,}"


def conversations(capacity: int, context: int) -> str:
    """Room for tokens, as so many conversations of the longest kind: "2 x 8,192 tokens"."""
    return f"{capacity / context:g} x {number(context)} tokens"


def seconds(duration: float, *, whole: bool = False) -> str:
    """A duration as "0.16 s" ("0 s" when `whole`), "42 s", "3 min", "2 h" or "12 days"."""
    if duration < 10 and not whole:
        return f"{duration:.2f} s"
    if duration < 120:
        return f"{duration:.0f} s"
    if duration < 7200:
        return f"{duration / 60:.0f} min"
    if duration < 2 * 86_400:
        return f"{duration / 3600:.0f} h"
    return f"{duration / 86_400:,.0f} days" if duration < 100 * 365 * 86_400 else "over 100 years"


def ago(age_s: float) -> str:
    """How long ago something was: "just now", "2 min ago", "yesterday", "12 days ago"."""
    if age_s < 60:
        return "just now"
    if age_s < 3600:
        return f"{age_s // 60:.0f} min ago"
    if age_s < 86_400:
        return f"{age_s // 3600:.0f} h ago"
    if age_s < 2 * 86_400:
        return "yesterday"
    return f"{age_s // 86_400:,.0f} days ago"


def bounds(noun: str, least: float | None, above: float | None, most: float | None) -> str:
    """What a number may be: "a number from 0 to 2", "a number above 0 and at most 1"."""
    if least is not None and most is not None:
        return f"{noun} from {_bound(least)} to {_bound(most)}"
    words = (("above", above), ("at least", least), ("at most", most))
    told = " and ".join(f"{word} {_bound(value)}" for word, value in words if value is not None)
    return f"{noun} {told}".rstrip()


def _bound(value: float) -> str:
    return str(value) if isinstance(value, int) else f"{value:.10g}"
