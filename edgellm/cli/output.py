"""The one sink of every command: data to stdout, everything else to stderr.

human   tables and lines; progress only where a terminal shows it
json    one JSON document on stdout, saying the same and more; errors too
quiet   data and errors only
"""

from __future__ import annotations

import sys
import textwrap
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TextIO

from edgellm.cli.columns import laid_out
from edgellm.cli.terminal import encodes, has_colour, is_terminal, width
from edgellm.errors import EdgeError
from edgellm.inert import inert, label
from edgellm.units import MIB, number, seconds

_BAR_WIDTH = 32
_REDRAW_S = 0.1
_STYLES = {"dim": "2", "error": "31;1", "warn": "33"}


class Output:
    """Writes for one command. `json` and `quiet` are the user's flags."""

    def __init__(self, *, json: bool = False, quiet: bool = False) -> None:
        self.json = json
        self.quiet = quiet
        self._status = 0  # characters of the status line that now stands on stderr

    @property
    def interactive(self) -> bool:
        """Whether a person watches stderr, so that progress makes sense."""
        return not self.quiet and is_terminal(sys.stderr)

    def line(self, text: str = "") -> None:
        """One line of data for people, on stdout; made inert."""
        self.clear_status()
        sys.stdout.write(inert(text) + "\n")

    def sentence(self, text: str) -> None:
        """The same for what is to be read, not copied: on a terminal folded at spaces, below its own indentation."""
        self.line(_wrapped(inert(text), sys.stdout))

    def document(self, value: object) -> None:
        """The command's whole result as one JSON document on stdout; of a name that is no text, as much as is one."""
        import msgspec

        try:
            encoded = msgspec.json.encode(value)
        except UnicodeEncodeError:  # file names are bytes, and those that are no UTF-8 have no place in JSON
            encoded = msgspec.json.encode(_valid(msgspec.to_builtins(value)))
        encoded = msgspec.json.format(encoded, indent=2)
        sys.stdout.write(encoded.decode("utf-8", errors="replace") + "\n")

    def table(self, columns: Sequence[str], rows: Sequence[Sequence[str]], spare: Sequence[str] = ()) -> None:
        """A table on stdout; a column whose name starts with ">" is aligned right.

        Where a terminal is too narrow, columns in `spare` are left out, the first of them first, which a footer says;
        and where that is not enough, each row becomes lines of names and values.
        """
        room = width() if is_terminal(sys.stdout) else None
        laid = laid_out(columns, [[inert(cell) for cell in row] for row in rows], spare, room)
        for line in laid.lines:
            self.line(line)
        for first, rest in laid.rows:
            self.line(first)
            self.pairs({name: value for name, value in rest.items() if value})
        if laid.left_out:
            self.footer(f"a wider terminal shows more: {', '.join(laid.left_out).lower()}")

    def pairs(self, rows: Mapping[str, str]) -> None:
        """Names and values below each other on stdout, indented; on a terminal long values are wrapped at spaces."""
        for line in _paired(rows, sys.stdout):
            self.line(line)

    def facts(self, rows: Mapping[str, str]) -> None:
        """The same as notes, on stderr."""
        for line in _paired(rows, sys.stderr):
            self.note(line)

    def note(self, text: str) -> None:
        """Something worth knowing, on stderr; not in quiet or JSON mode."""
        if not (self.quiet or self.json):
            self._say(_wrapped(inert(text), sys.stderr))

    def footer(self, text: str) -> None:
        """A note in faint letters, wrapped at spaces on a terminal."""
        if not (self.quiet or self.json):
            self._say(styled("dim", _wrapped(inert(text), sys.stderr)))

    def warn(self, text: str) -> None:
        """Something the user should act on, on stderr in every mode."""
        told = _wrapped(f"warning: {inert(text)}", sys.stderr)
        self._say(told.replace("warning:", styled("warn", "warning:"), 1))

    def error(self, error: EdgeError) -> None:
        """An error and the way out, on stderr; in JSON mode also as the document on stdout."""
        if self.json:
            self.document({"error": error.info})
        told = _wrapped(f"error: {inert(error.message)}", sys.stderr)
        self._say(told.replace("error:", styled("error", "error:"), 1))
        if error.hint:
            self._say(_wrapped(f"hint: {inert(error.hint)}", sys.stderr))

    def status(self, text: str) -> None:
        """Replace the status line, which stays on a terminal until the next output; nothing elsewhere."""
        if not self.interactive:
            return
        shown = inert(text)[: width() - 1]
        sys.stderr.write("\r" + shown.ljust(self._status))
        sys.stderr.flush()
        self._status = len(shown)

    def clear_status(self) -> None:
        """Remove the status line."""
        if self._status:
            # With the ^C that a terminal shows behind it.
            sys.stderr.write("\r" + " " * min(self._status + len("^C"), width() - 1) + "\r")
            sys.stderr.flush()
            self._status = 0

    def _say(self, text: str) -> None:
        self.clear_status()
        sys.stdout.flush()  # so that the two streams keep their order on one terminal
        sys.stderr.write(text + "\n")
        sys.stderr.flush()


def _valid(value: Any) -> Any:
    from edgellm.formats.normal_forms import valid

    if isinstance(value, str):
        return valid(value)
    if isinstance(value, dict):
        return {_valid(key): _valid(item) for key, item in value.items()}
    return [_valid(item) for item in value] if isinstance(value, list | tuple) else value


class Bar:
    """A progress bar on the status line: done and total in MiB, rate, time left; one last line stays."""

    def __init__(self, output: Output) -> None:
        self._output = output
        self._began: float | None = None
        self._first = 0  # bytes that were there when it began (a resumed download)
        self._drawn = 0.0

    def update(self, done: int, total: int | None, remark: str = "") -> None:
        """Show `done` of `total` bytes, and a remark in place of rate and time left; at most ten times a second."""
        now = time.monotonic()
        if self._began is None:
            self._began, self._first = now, done
        if now - self._drawn >= _REDRAW_S:
            self._drawn = now
            figures = [remark] if remark else [*self._rate(done, now), *self._left(done, total, now)]
            parts = [self._picture(done, total), *figures]
            self._output.status(" · ".join(parts))

    def finish(self, done: int, remark: str) -> None:
        """Leave the full bar and a remark, such as "verified"."""
        rate = self._rate(done, time.monotonic())
        self._output.note(" · ".join([self._picture(done, done), *rate, remark]))

    def _picture(self, done: int, total: int | None) -> str:
        if not total:
            return f"{done / MIB:.0f} MiB"
        full, empty = ("━", " ") if encodes(sys.stderr, "━") else ("#", ".")
        filled = min(_BAR_WIDTH, _BAR_WIDTH * done // total)
        return f"{full * filled}{empty * (_BAR_WIDTH - filled)} {number(_mib(done))}/{number(_mib(total))} MiB"

    def _rate(self, done: int, now: float) -> list[str]:
        elapsed = now - (self._began if self._began is not None else now)
        moved = done - self._first
        return [f"{moved / elapsed / MIB:.0f} MiB/s"] if elapsed > 0.2 and moved > 0 else []

    def _left(self, done: int, total: int | None, now: float) -> list[str]:
        elapsed = now - (self._began if self._began is not None else now)
        moved = done - self._first
        if not total or done >= total or elapsed < 1 or moved <= 0:
            return []
        return [f"{seconds((total - done) * elapsed / moved, whole=True)} left"]


def _paired(rows: Mapping[str, str], stream: TextIO) -> Iterator[str]:
    wide = max((len(name) for name in rows), default=0)
    for name, value in rows.items():
        flat = label(value, limit=4000)
        room = max(20, width() - wide - 5) if is_terminal(stream) else len(flat) + 1
        lines = textwrap.wrap(flat, room, break_long_words=False, break_on_hyphens=False) or [""]
        for index, text in enumerate(lines):
            yield f"  {('' if index else name).ljust(wide)}  {text}"


def styled(style: str, text: str) -> str:
    """`text` in colour for stderr, where colour is possible and wanted."""
    return f"\x1b[{_STYLES[style]}m{text}\x1b[0m" if has_colour(sys.stderr) else text


def _wrapped(text: str, stream: TextIO) -> str:
    """On a terminal: lines that are too long for it, broken at spaces, as far as there are some."""
    if not is_terminal(stream):
        return text
    room = width() - 1
    return "\n".join(_folded(line, room) if len(line) > room else line for line in text.split("\n"))


def _folded(line: str, room: int) -> str:
    indent = line[: len(line) - len(line.lstrip(" "))]
    return textwrap.fill(line, room, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)


def _mib(count: int) -> int:
    return max(1, round(count / MIB)) if count else 0
