"""Texts of control tokens (`<|im_end|>`) inside messages must not become control tokens: who can write a message could
end his turn and speak as the system.

Each such text is marked, before rendering, with a character that occurs nowhere else and the text's number; the
template's own control texts carry no mark. After rendering, a stretch between the template's control tokens that holds
a mark is encoded with control tokens off, as a whole, so that marked text gets the ids of plain text. The number is
there because templates cut messages up (`content.split('</think>')[0]`): a mark left behind must not disarm a control
text of the template's own that comes to stand after it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Literal


class ControlTexts:
    """Finds the texts of control tokens in a text: leftmost first, of several there the longest.

    By a look at two characters and a few dictionary look-ups rather than by one large regular expression: vocabularies
    have up to thousands of control tokens (`<unused123>`), and a hostile one may have any.
    """

    def __init__(self, texts: Sequence[str]) -> None:
        self._texts = sorted({text for text in texts if text}, key=len, reverse=True)
        self._numbers = {text: number for number, text in enumerate(self._texts)}
        self._lengths: dict[str, list[int]] = {}  # by the first two characters (or the only one), longest first
        for text in self._texts:
            lengths = self._lengths.setdefault(text[:2], [])
            if len(text) not in lengths:
                lengths.append(len(text))
        starts = {re.escape(text[0]) for text in self._texts}
        self._starts = re.compile(f"[{''.join(sorted(starts))}]") if starts else None

    def spans(self, text: str) -> Iterator[tuple[int, int]]:
        """Start and end of each occurrence, in order, without overlaps."""
        end = 0
        for match in self._starts.finditer(text) if self._starts else ():
            start = match.start()
            if start >= end and (length := self._length_at(text, start)):
                end = start + length
                yield start, end

    def within(self, text: str) -> bool:
        """Whether there is any."""
        return next(self.spans(text), None) is not None

    def marked(self, text: str, mark: str) -> str:
        """`text` with `mark` and a number of six digits before each occurrence."""
        parts: list[str] = []
        done = 0
        for start, end in self.spans(text):
            parts += [text[done:start], mark, f"{self._numbers[text[start:end]]:06x}"]
            done = start
        return "".join([*parts, text[done:]])

    def stretches(self, text: str, mark: str) -> Iterator[tuple[str, bool]]:
        """Cut a rendered conversation: (text without marks, whether control texts in it are control tokens)."""
        trusted: list[str] = []
        stretch: list[str] = []  # since the template's last control text
        marked = False
        for part, kind in [*self._parts(text, mark), ("", "control")]:
            if kind != "control":
                stretch.append(part)
                marked |= kind == "marked"
                continue
            if marked:
                yield "".join(trusted), True
                yield "".join(stretch), False
                trusted = []
            else:
                trusted += stretch
            trusted.append(part)
            stretch, marked = [], False
        yield "".join(trusted), True

    def _parts(self, text: str, mark: str) -> Iterator[tuple[str, Literal["plain", "marked", "control"]]]:
        done = 0
        for tag in re.finditer(f"{mark}([0-9a-f]{{6}})?", text):
            yield from self._unmarked(text[done : tag.start()])
            literal = self._texts[int(tag[1], 16)] if tag[1] else ""
            if not text.startswith(literal, tag.end()):
                literal = ""  # the template has cut the mark from its text
            yield literal, "marked"
            done = tag.end() + len(literal)
        yield from self._unmarked(text[done:])

    def _unmarked(self, text: str) -> Iterator[tuple[str, Literal["plain", "control"]]]:
        done = 0
        for start, end in self.spans(text):
            yield text[done:start], "plain"
            yield text[start:end], "control"
            done = end
        yield text[done:], "plain"

    def _length_at(self, text: str, start: int) -> int:
        for length in self._lengths.get(text[start : start + 2], ()):
            found = text[start : start + length]
            if found in self._numbers:
                return len(found)  # less than `length` at the end of the text
        return int(text[start] in self._numbers)
