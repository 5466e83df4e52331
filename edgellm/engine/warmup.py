"""Before a model counts as ready: run a few steps, since first steps allocate and page in; learn what steps cost."""

from __future__ import annotations

import time

from edgellm.contracts.engine import Row, SampleSpec, TokenRunner
from edgellm.engine.scheduler import Scheduler

LONGEST_S = 0.25  # a size is not tried when it would take longer: first answers matter more than exact costs
_GREEDY = SampleSpec(temperature=0.0)


def warm_up(runner: TokenRunner, token: int, scheduler: Scheduler) -> None:
    """Leaves the runner empty. Raises what the runner raises."""
    seconds = _step(runner, token, 0)
    for drafts in sorted({0, *(n for n in (3, 7, 15) if n <= runner.info.draft_tokens)}):
        if seconds * (drafts + 1) > LONGEST_S and drafts:
            break
        seconds = _step(runner, token, drafts)
        scheduler.decode_costs.observe(drafts + 1, seconds)
        if drafts == 0:
            scheduler.costs.observe(1, seconds)


def _step(runner: TokenRunner, token: int, drafts: int) -> float:
    began = time.monotonic()
    runner.collect(runner.submit([Row(0, 0, (token,), _GREEDY, draft=(token,) * drafts)]))
    seconds = time.monotonic() - began
    runner.free(0)
    return seconds
