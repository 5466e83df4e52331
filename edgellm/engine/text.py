"""Tokens to text while they arrive: whole characters only, thoughts apart from the answer, no part of a stop string.

The concatenation of all pieces equals the whole reply's bytes decoded at once (bad bytes as U+FFFD), parted as the
model's format says (reasoning.py), the answer cut before the stop string that is complete first; of several complete
at the same character the longest. So the text does not depend on where token boundaries fall, nor on tokens arriving
one by one or several at a time.

Stop strings are looked for in the answer alone, without the white space between it and the thoughts: a stop such as a
blank line is meant for what is asked for, and would end most thoughts after their first paragraph.

Characters stay whole; what people see as one sign may not. An emoji joined of several (family, flag, skin tone) or a
letter with combining marks may arrive over several pieces: where such a cluster ends is known only when the next
character is there, and holding back every last character would delay all text for the sake of a few.
"""

from __future__ import annotations

import codecs
from collections.abc import Sequence

import msgspec

from edgellm.contracts.engine import Tokenizer
from edgellm.engine.reasoning import ReasoningFormat, splitter
from edgellm.errors import InvalidRequest


class Piece(msgspec.Struct, frozen=True):
    """Thoughts and text that are now certain, in this order, and whether a stop string ended the answer."""

    reasoning: str
    text: str
    stopped: bool


class ReplyText:
    """The text of one reply. Looks at each character a few times, whatever the number and length of stop strings."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        stop: tuple[str, ...] = (),
        reasoning: ReasoningFormat | None = None,
        started_inside: bool = False,
        *,
        continued: bool = False,
    ) -> None:
        """`started_inside`: the prompt ends within the thoughts; `continued`: in the middle of a text, at that.

        Raises InvalidRequest for an empty stop string, which would be found everywhere.
        """
        self._tokenizer = tokenizer
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._stops = StopFinder(stop) if stop else None
        self._splitter = None if reasoning is None else splitter(reasoning, started_inside, continued)
        self._stopped = False

    def push(self, token: int) -> Piece:
        """What `token` makes certain; nothing once stopped."""
        if self._stopped:
            return Piece("", "", True)
        if self._splitter is not None and token in self._splitter.marks:
            return self._piece(*self._at_mark(token))
        text = self._decoder.decode(self._tokenizer.token_bytes(token))
        return self._piece(*(("", text) if self._splitter is None else self._splitter.feed(text)))

    def finish(self) -> Piece:
        """What was held back, when the reply ends without a stop string; nothing after one, and the second time."""
        if self._stopped:
            return Piece("", "", True)
        reasoning, text = "", self._decoder.decode(b"", True)
        if self._splitter is not None:
            reasoning, text = _both(self._splitter.feed(text), self._splitter.finish())
        piece = self._piece(reasoning, text)
        if self._stops is not None and not self._stopped:
            piece = Piece(reasoning, piece.text + self._stops.release(), False)
        self._stopped = True
        return piece

    def _at_mark(self, token: int) -> tuple[str, str]:
        """A control token that parts thoughts and answer: what came before it is complete."""
        assert self._splitter is not None
        before = self._splitter.feed(self._decoder.decode(b"", True))
        self._decoder.reset()
        return _both(before, self._splitter.mark(token))

    def _piece(self, reasoning: str, text: str) -> Piece:
        if self._stops is not None and text:
            text, self._stopped = self._stops.feed(text)
        return Piece(reasoning, text, self._stopped)


def _both(first: tuple[str, str], second: tuple[str, str]) -> tuple[str, str]:
    return first[0] + second[0], first[1] + second[1]


class StopFinder:
    """Finds stop strings in a stream of text: the automaton of Aho and Corasick ("Efficient string matching", 1975).

    A state stands for the longest end of the text that begins some stop string; its depth is that end's length, and so
    exactly what must be held back.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        if "" in stops:
            raise InvalidRequest("a stop string must not be empty", param="stop")
        self._next: list[dict[str, int]] = [{}]
        self._depth = [0]
        self._found = [0]  # length of the longest stop string that ends here; 0: none
        self._fall = [0]  # the state of the next shorter end
        for stop in stops:
            self._add(stop)
        self._link()
        self._state = 0
        self._held = ""

    def feed(self, text: str) -> tuple[str, bool]:
        """The text that is certain now, and whether a stop string is complete (then nothing follows)."""
        state, following, found = self._state, self._next, self._found
        for index, character in enumerate(text):
            while (target := following[state].get(character)) is None and state:
                state = self._fall[state]
            state = target or 0
            if found[state]:
                text = self._held + text[: index + 1]
                self._held = ""
                return text[: len(text) - found[state]], True
        self._state = state
        text = self._held + text
        certain = len(text) - self._depth[state]
        self._held = text[certain:]
        return text[:certain], False

    def release(self) -> str:
        """What is held back, when nothing follows."""
        held, self._held, self._state = self._held, "", 0
        return held

    def _add(self, stop: str) -> None:
        state = 0
        for character in stop:
            target = self._next[state].get(character)
            if target is None:
                target = len(self._next)
                self._next[state][character] = target
                self._next.append({})
                self._depth.append(self._depth[state] + 1)
                self._found.append(0)
                self._fall.append(0)
            state = target
        self._found[state] = len(stop)

    def _link(self) -> None:
        """Breadth first, so that a shorter end is complete before a longer one refers to it."""
        level = list(self._next[0].values())
        while level:
            below: list[int] = []
            for state in level:
                for character, target in self._next[state].items():
                    self._fall[target] = self._step(self._fall[state], character)
                    self._found[target] = self._found[target] or self._found[self._fall[target]]
                    below.append(target)
            level = below

    def _step(self, state: int, character: str) -> int:
        while (target := self._next[state].get(character)) is None and state:
            state = self._fall[state]
        return target or 0
