"""How long a step will take, learned from the steps that ran.

Step time is not linear in tokens: the first is dear (weights are read once), small matrix products work in groups, and
large chunks are cheap per token. So times are kept per size class and interpolated between the classes seen. On top
comes attention: seconds for each pair of a token and one that it looks at. Engines compute it in tiles where a step has
the rows for it, and row by row below; so it is learned for narrow and for wide steps apart.
"""

from __future__ import annotations

import bisect
from collections.abc import Callable

# Upper edges of the classes: every small row count by itself, then powers of two and their halves.
_EDGES = (1, 2, 3, 4, 5, 6, 7, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 1024, 2048, 4096)
_WEIGHT = 0.2  # of the newest measurement
_WIDE = 64  # tokens
_DEPTH = 64.0  # tokens by which depths must differ to tell of attention
# Tokens of context at which attention costs as much as all else, before any was measured: a model of some 0.5B.
_GUESSED_DEPTH = 2000.0


def _none(_tokens: int) -> float:
    """Pairs of a step, where nobody says."""
    return 0.0


class _Class:
    """Steps of about one size: means, and how seconds per token vary with depth (the tokens that one looks at)."""

    def __init__(self, tokens: int, seconds: float, depth: float) -> None:
        self.tokens = float(tokens)
        self.token_s = seconds / tokens
        self.depth = depth
        self.variance = 0.0  # of the depth
        self.covariance = 0.0

    def observe(self, tokens: int, seconds: float, depth: float) -> None:
        off, off_s = depth - self.depth, seconds / tokens - self.token_s
        self.tokens += _WEIGHT * (tokens - self.tokens)
        self.token_s += _WEIGHT * off_s
        self.depth += _WEIGHT * off
        self.variance = (1 - _WEIGHT) * (self.variance + _WEIGHT * off * off)
        self.covariance = (1 - _WEIGHT) * (self.covariance + _WEIGHT * off * off_s)


class StepCosts:
    """Seconds of a step by its number of tokens, and of pairs: for each token, the tokens that it looks at."""

    def __init__(self) -> None:
        self._classes: dict[int, _Class] = {}
        self._pair_s = (0.0, 0.0)  # seconds per pair in narrow and in wide steps
        self._points: list[tuple[float, float]] = []  # mean tokens and seconds of each class, without attention

    def observe(self, tokens: int, seconds: float, pairs: float = 0.0) -> None:
        """Learn from a step of `tokens` tokens over all rows."""
        index = bisect.bisect_left(_EDGES, tokens)
        if (expected := self.predict(tokens, pairs)) > 0:  # 0: nothing is known, or a clock was too coarse
            # One slow step (a page fault, a busy machine, a sleep) must not look like the new truth; in a class that is
            # new it would stay: sizes that look too slow are not tried again.
            seconds = min(seconds, 4 * expected)
        if (known := self._classes.get(index)) is None:
            self._classes[index] = _Class(tokens, seconds, pairs / tokens)
        else:
            known.observe(tokens, seconds, pairs / tokens)
        self._pair_s = (self._slope(wide=False), self._slope(wide=True))
        self._points = sorted((each.tokens, self._base_of(each)) for each in self._classes.values())

    def _slope(self, *, wide: bool) -> float:
        """Seconds per pair: the slope common to the classes of a kind, drawn to a guess where depths hardly differ."""
        kind = [each for each in self._classes.values() if (each.tokens >= _WIDE) == wide]
        if not kind:
            return 0.0
        guess = min(each.token_s for each in kind) / _GUESSED_DEPTH
        variance = sum(each.variance for each in kind) + _DEPTH**2
        covariance = sum(each.covariance for each in kind) + guess * _DEPTH**2
        return max(0.0, covariance / variance)

    def _base_of(self, known: _Class) -> float:
        attention = self._pair_s[known.tokens >= _WIDE] * known.depth
        return known.tokens * max(known.token_s - attention, 0.1 * known.token_s)

    def predict(self, tokens: int, pairs: float = 0.0) -> float:
        """Seconds expected for a step of `tokens` tokens; 0 before anything was measured."""
        if tokens <= 0 or not self._points:
            return 0.0
        return self._base(tokens) + self._pair_s[tokens >= _WIDE] * pairs

    def _base(self, tokens: int) -> float:
        """Without attention."""
        points = self._points
        if len(points) == 1 or tokens <= points[0][0]:
            size, seconds = points[0]
            return seconds if tokens <= size else seconds * tokens / size
        right = bisect.bisect_left(points, (float(tokens), 0.0))
        if right == len(points):
            size, seconds = points[-1]
            return seconds * tokens / size
        (x0, y0), (x1, y1) = points[right - 1], points[right]
        return y0 + (y1 - y0) * (tokens - x0) / max(1e-9, x1 - x0)

    def fits(self, seconds: float, lower: int, upper: int, pairs: Callable[[int], float] = _none) -> int:
        """The most tokens in lower..upper predicted to take at most `seconds`; `lower` when none does.

        `pairs` says how many there would be.
        """
        if upper <= lower or self.predict(upper, pairs(upper)) <= seconds:
            return max(lower, upper)
        while lower < upper:  # prediction grows with tokens, near enough
            middle = (lower + upper + 1) // 2
            if self.predict(middle, pairs(middle)) <= seconds:
                lower = middle
            else:
                upper = middle - 1
        return lower

    def known(self, tokens: int) -> bool:
        """Has a step of this size or larger been measured?"""
        return any(size >= 0.75 * tokens for size, _ in self._points)
