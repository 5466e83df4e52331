"""How many threads decode steps use, beside programs that want the same CPUs. Pure: it is told what steps took.

The threads of a step wait for each other some three hundred times. Where other programs keep the CPUs busy, one thread
is always waiting for its turn and the others for it, and a step takes ten times as long; with fewer threads, two or
three times. What other programs do is not looked at, as it says little of what a thread gets (containers, priorities,
cores of two kinds): steps that take far longer than such steps have taken are reason for a trial with fewer threads,
and what is faster is kept. From there, now and then, a trial with more.
"""

from __future__ import annotations

import math
import statistics
from collections import deque
from collections.abc import Iterable

Kind = tuple[int, int]  # steps alike: tokens, and about how much they look at
Steps = Iterable[tuple[Kind, float]]  # with the seconds that each took

WINDOW = 8  # steps that say how it goes: more than half must be slow to mean anything
TRIES = 4  # steps of a trial, at most
LATE = 1.5  # times as long as at best: fewer threads may be better
_NEWS = (0.6, 2.0)  # of how long steps took at the last search: neighbours may have left, or more have come
_LESS = 0.8  # of the time is what fewer threads must do with
_MORE = 1.1  # times as long may steps with more threads take: on a quiet machine all are best in the long run
_WAIT_S = 1.0  # after a trial; doubles while nothing comes of them
_LOST = 10  # times as long as all that a trial has cost, so that they cost some hundredths at most
_DOUBLINGS = 2  # of that wait: whoever has fewer threads than could be soon sees that neighbours left
_QUIET_DOUBLINGS = 5  # with all threads and no slower than this
_QUIET = 2.0  # times as long as at best
_FROZEN = 10.0  # times as long as before a trial: all of a step that counts as lost, for beyond it nothing may have run


def kind(tokens: int, cells: int) -> Kind:
    """Of a step of `tokens` tokens with `cells` of KV in use: times of one kind are within a half of each other."""
    return tokens, max(9, cells.bit_length())


def rungs(most: int) -> list[int]:
    """Thread counts worth a trial, ascending: all, one less, three quarters, and halves."""
    counts = {most, max(1, most - 1), max(1, most * 3 // 4)}
    half = most
    while half := half // 2:
        counts.add(half)
    return sorted(counts)


class ThreadCount:
    """The number of threads for decode steps, of at most `most`.

    A search is a row of trials: each of a few steps with another count, which is kept if it does better.
    """

    def __init__(self, most: int) -> None:
        self.most = most
        self._rungs = rungs(most)
        self._kept = most
        self._recent: deque[tuple[Kind, float]] = deque(maxlen=WINDOW)  # with the count that is kept
        self._best: dict[Kind, float] = {}  # seconds; as many as a step may have tokens, times a dozen, at most
        self._queue: list[int] = []  # counts to try in this search, the first of them now
        self._tried: list[tuple[Kind, float]] = []
        self._won = False  # whether a trial of this search did better
        self._lost_s = 0.0  # by this search
        self._usual = 1.0  # times as long as at best, when the last search ended
        self._due = 0.0  # the next search may begin
        self._failures = 0  # searches in a row of which nothing came

    @property
    def count(self) -> int:
        """For the next decode step."""
        return self._queue[0] if self._queue else self._kept

    def took(self, step: Kind, seconds: float, now: float) -> None:
        """A decode step of such a kind with `count` threads took `seconds`, and has ended `now`."""
        if self.most == 1 or seconds <= 0:  # 0: a clock too coarse to tell
            return
        if (best := self._best.get(step)) is None:
            self._best[step] = seconds  # nothing to compare it with
            return
        if seconds < best:
            self._best[step] = seconds
        if self._queue:
            self._tried.append((step, seconds))
            self._judge(now)
        else:
            self._recent.append((step, seconds))
            # Asked after every step, so the usual answer is quick.
            all_is_well = self._kept == self.most and seconds < LATE * best
            if len(self._recent) == WINDOW and not all_is_well:
                self._consider(now)

    def _slowness(self) -> float:
        """How many times as long as at best recent steps took, the middle one of them."""
        return statistics.median_low(self._ratios(self._recent))

    def _ratios(self, steps: Steps) -> list[float]:
        return [seconds / self._best[step] for step, seconds in steps]

    def _consider(self, now: float) -> None:
        """Begin a search, if there is reason to: one was long ago, or it is otherwise than it was then."""
        slowness = self._slowness()
        fallen, risen = (self._usual * ratio for ratio in _NEWS)
        due = now >= self._due
        if not fallen <= slowness <= risen:
            self._failures = 0
        if slowness > risen or (due and slowness >= LATE and self._kept == self.most):
            self._queue = self._fewer()
        if not self._queue and (slowness < fallen or due):
            self._queue = self._more()

    def _fewer(self) -> list[int]:
        """Counts below the one that is kept, down to half of it; and one thread, which waits for no other.

        One alone takes longer than all on a quiet machine, by the square root of their number as a rule, or more. So
        it is not tried where steps are no slower than that (a machine that runs hot): whoever reads would wait for it.
        """
        half, alone = self._kept // 2, self._slowness() > math.sqrt(self.most)
        return [n for n in reversed(self._rungs) if n < self._kept and (n >= half or (alone and n == 1))]

    def _more(self) -> list[int]:
        return [count for count in self._rungs if count > self._kept][:1]

    def _judge(self, now: float) -> None:
        """End the trial once it is decided."""
        count, ratios = self._queue[0], self._ratios(self._tried)
        # Means say what a text takes; but steps that were slow by chance must not speak for fewer threads.
        usual = statistics.fmean(self._ratios(self._recent))
        allowed = _LESS * self._slowness() if count < self._kept else _MORE * usual
        if sum(ratios) > TRIES * allowed:
            self._lost_s += sum(self._lost(step, seconds, usual) for step, seconds in self._tried)
            self._next(None, now)
        elif len(ratios) == TRIES:
            self._next(count, now)

    def _lost(self, step: Kind, seconds: float, usual: float) -> float:
        """Seconds; below 0 where a step of a trial was quicker than `usual`, times as long as at best."""
        expected = usual * self._best[step]
        return min(seconds, _FROZEN * expected) - expected

    def _next(self, winner: int | None, now: float) -> None:
        """Go on with the search from the count that did better, if one did, or end it."""
        fewer = self._queue.pop(0) < self._kept
        if winner is not None:
            self._kept = winner
            self._recent = deque(self._tried, WINDOW)
            self._won = True
            if not self._queue:
                self._queue = self._fewer() if fewer else self._more()
        self._tried = []
        if self._queue:
            return
        self._usual = self._slowness()
        most = _QUIET_DOUBLINGS if self._kept == self.most and self._usual < _QUIET else _DOUBLINGS
        self._failures = 0 if self._won else min(self._failures + 1, most)
        wait_s = max(_WAIT_S, _LOST * self._lost_s) * 2**self._failures
        # What came of fewer threads is made sure of at once: the neighbour may have left during the trial.
        self._due = now if fewer and self._won else now + wait_s
        self._won, self._lost_s = False, 0.0
