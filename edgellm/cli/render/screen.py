"""Lines on a terminal: settled ones are written once and scroll away, the open ones below them are redrawn in place.

Nothing beyond the height of the screen is ever redrawn: open lines that would leave it at the top stay as they are.
Only what differs is written, in one piece, so nothing flickers, also over a slow connection.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import takewhile

from edgellm.cli.render.measure import rows

# From the left edge to the end. tmux keeps what is erased from its upper left corner on as if it had scrolled away, so
# that is never where it begins.
_ERASE = "\x1b[C\x1b[J\r\x1b[K"


class Screen:
    """The part of a terminal below the line where it began. It writes nothing itself: it says what to write."""

    def __init__(self) -> None:
        self._shown: list[str] = []  # open lines on the screen; the cursor is at the end of the last
        self._kept = 0  # lines of what is still open that are no longer redrawn
        self._fresh = True  # nothing was written yet: the cursor is at the left edge

    def draw(self, settled: Sequence[str], opened: Sequence[str], width: int, height: int) -> str:
        """What to write so that `settled` lines, and then the `opened` ones, follow what settled before."""
        skip = min(self._kept, len(settled))
        self._kept -= skip
        done, still = list(settled[skip:]), list(opened[self._kept :])
        room = max(1, height - 1)
        count = len(still)
        while count > 1 and sum(rows(line, width) for line in still[len(still) - count :]) > room:
            count -= 1
        leaving = len(still) - count
        self._kept += leaving
        written = self._change([*done, *still], width)
        self._shown = still[leaving:]
        if written and not self._shown and not done and not self._fresh:
            self._shown = [""]
        return written

    def _change(self, lines: list[str], width: int) -> str:
        """From what is shown to `lines`."""
        old = self._shown
        same = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(old, lines, strict=False)))
        if same == len(old):
            more = lines[same:]
            begin = "" if self._fresh or not more else "\n"
            self._fresh = self._fresh and not more
            return begin + "\n".join(more)
        if same == len(old) - 1 and same < len(lines) and lines[same].startswith(old[same]):
            return lines[same][len(old[same]) :] + "".join("\n" + line for line in lines[same + 1 :])
        up = sum(rows(line, width) for line in old[same:]) - 1
        return "\r" + (f"\x1b[{up}A" if up else "") + _ERASE + "\n".join(lines[same:])
