"""Times in tests: what a machine does beside them only ever adds, so what counts is the least of several."""

from __future__ import annotations

import math
import time
from collections.abc import Callable


def at_best(measure: Callable[[], float], enough: float, tries: int = 5) -> float:
    """The least of up to `tries` times that `measure` returns; one below `enough` is the last."""
    least = math.inf
    for _ in range(tries):
        least = min(least, measure())
        if least < enough:
            break
    return least


def least_cpu_s(work: Callable[[], object], enough: float = 0.0, tries: int = 5) -> float:
    """CPU seconds of this thread that `work` takes at best."""

    def measure() -> float:
        began = time.thread_time()
        work()
        return time.thread_time() - began

    return at_best(measure, enough, tries)
