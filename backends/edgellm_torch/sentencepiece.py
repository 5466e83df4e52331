"""SentencePiece's BPE: neighbours whose union is a token are merged, best score first, until none is left.

Not by pairs in order of rank, as other BPE is: two unions of equal score are taken from the left, and a union counts
however it came about. So the tokens are llama.cpp's, to the last one.
Source: Kudo and Richardson, "SentencePiece", 2018; llama-vocab.cpp of llama.cpp.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from heapq import heapify, heappop, heappush
from typing import Final

from edgellm.formats.vocabulary import SPACE
from edgellm_torch.words import WordMemory

_WORDS: Final = re.compile(f"{SPACE}*[^{SPACE}]+|{SPACE}+")


class SentencePiece:
    """Merging over one vocabulary. `ids` has the tokens that text may become; `scores` are by id.

    byte_ids    the tokens of single bytes, for characters that are no token; None where there is none
    unknown     stands for what cannot be written at all
    """

    def __init__(
        self, ids: Mapping[str, int], scores: Sequence[float], byte_ids: Sequence[int | None], unknown: int | None
    ) -> None:
        self._ids = ids
        self._scores = scores
        self._bytes = byte_ids
        self._unknown = unknown
        # No token has these before a space inside: nothing merges across such a place.
        self._joins = {
            text[at - 1]
            for text in ids
            for at in _inner_spaces(text)
            if text[at - 1] != SPACE  # runs are one word
        }
        self._memory = WordMemory(self._merged)

    def encode(self, text: str) -> list[int]:
        """Ids of `text`, in which spaces are already SPACE. Its words are merged one by one, and remembered."""
        return self._memory.ids(self._words(text))

    def _words(self, text: str) -> list[str]:
        words = _WORDS.findall(text)
        if not self._joins:
            return words
        joined: list[list[str]] = []
        for word in words:
            if joined and joined[-1][-1][-1] in self._joins:
                joined[-1].append(word)
            else:
                joined.append([word])
        return ["".join(parts) for parts in joined]

    def _merged(self, word: str) -> list[int]:
        parts = list(word)  # "" where a part went into the one before it
        after = [*range(1, len(parts)), -1]
        before = list(range(-1, len(parts) - 1))
        ids, scores = self._ids, self._scores
        queue: list[tuple[float, int, int, int]] = []  # (-score, left, right, characters)
        for left in range(len(parts) - 1):
            token = ids.get(parts[left] + parts[left + 1])
            if token is not None:
                queue.append((-scores[token], left, left + 1, 2))
        heapify(queue)
        while queue:
            _, left, right, length = heappop(queue)
            union = parts[left] + parts[right]
            if not parts[left] or not parts[right] or len(union) != length:
                continue  # one of them was merged with another meanwhile
            parts[left], parts[right] = union, ""
            nearest = after[left] = after[right]
            if nearest >= 0:
                before[nearest] = left
            for first, second in ((before[left], left), (left, nearest)):
                if first >= 0 and second >= 0:
                    token = ids.get(parts[first] + parts[second])
                    if token is not None:
                        size = len(parts[first]) + len(parts[second])
                        heappush(queue, (-scores[token], first, second, size))
        return [token for part in parts if part for token in self._tokens(part)]

    def _tokens(self, part: str) -> list[int]:
        token = self._ids.get(part)
        if token is not None:
            return [token]
        found = [self._bytes[byte] for byte in part.encode()]
        if None in found:
            return [] if self._unknown is None else [self._unknown]
        return [token for token in found if token is not None]


def _inner_spaces(text: str) -> list[int]:
    """Where a space follows another character in a token."""
    return [at for at in range(1, len(text)) if text[at] == SPACE] if SPACE in text[1:] else []
