"""How long a step will take, learned from the steps that ran.

Step time is not linear in tokens: the first is dear (weights are read once), small matrix products work in groups, and
large chunks are cheap per token. So times are kept per size class and interpolated between the classes seen.
"""

from __future__ import annotations

import bisect

# Upper edges of the classes: every small row count by itself, then powers of two and their halves.
_EDGES = (1, 2, 3, 4, 5, 6, 7, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 1024, 2048, 4096)
_WEIGHT = 0.2  # of the newest measurement
_LARGE = 64  # tokens of a step in which attention over a long context shows
_TREND = 0.5  # weight of the newest error


class StepCosts:
    """Seconds of a step by its number of tokens."""

    def __init__(self) -> None:
        self._seen: dict[int, tuple[float, float]] = {}  # class -> (mean tokens, mean seconds)
        self._behind = 1.0  # what large steps took lately, in multiples of their prediction

    def observe(self, tokens: int, seconds: float) -> None:
        """Learn from a step of `tokens` tokens over all rows."""
        index = bisect.bisect_left(_EDGES, tokens)
        if tokens >= _LARGE and self.known(tokens):
            off = min(2.0, max(0.5, seconds / max(1e-9, self.predict(tokens))))
            self._behind += _TREND * (off - self._behind)
        if index not in self._seen:
            self._seen[index] = (float(tokens), seconds)
            return
        mean_tokens, mean_seconds = self._seen[index]
        # One slow step (a page fault, a busy machine) must not look like the new truth.
        seconds = min(seconds, 4 * mean_seconds)
        self._seen[index] = (
            mean_tokens + _WEIGHT * (tokens - mean_tokens),
            mean_seconds + _WEIGHT * (seconds - mean_seconds),
        )

    def predict(self, tokens: int) -> float:
        """Seconds expected for a step of `tokens` tokens; 0 before anything was measured."""
        if tokens <= 0 or not self._seen:
            return 0.0
        points = sorted(self._seen.values())
        if len(points) == 1 or tokens <= points[0][0]:
            size, seconds = points[0]
            return seconds if tokens <= size else seconds * tokens / size
        right = bisect.bisect_left(points, (float(tokens), 0.0))
        if right == len(points):
            size, seconds = points[-1]
            return seconds * tokens / size
        (x0, y0), (x1, y1) = points[right - 1], points[right]
        return y0 + (y1 - y0) * (tokens - x0) / max(1e-9, x1 - x0)

    def fits(self, seconds: float, lower: int, upper: int) -> int:
        """The most tokens in lower..upper predicted to take at most `seconds`; `lower` when none does.

        A prompt's steps grow dearer the deeper it gets, and means lag behind that: the latest error counts too.
        """
        seconds /= self._behind
        if upper <= lower or self.predict(upper) <= seconds:
            return max(lower, upper)
        while lower < upper:  # prediction grows with tokens, near enough
            middle = (lower + upper + 1) // 2
            if self.predict(middle) <= seconds:
                lower = middle
            else:
                upper = middle - 1
        return lower

    def known(self, tokens: int) -> bool:
        """Has a step of this size or larger been measured?"""
        return any(size >= 0.75 * tokens for size, _ in self._seen.values())
