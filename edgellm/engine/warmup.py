"""Before a model counts as ready: run a few steps, since first steps allocate and page in; learn what steps cost."""

from __future__ import annotations

import time

from edgellm.contracts.runner import Row, SampleSpec, TokenRunner
from edgellm.engine.scheduler import Scheduler

LONGEST_S = 0.25  # a size is not tried when it would take longer: first answers matter more than exact costs
_GREEDY = SampleSpec(temperature=0.0)


def warm_up(runner: TokenRunner, token: int, scheduler: Scheduler) -> None:
    """Leaves the runner empty. Raises what the runner raises."""
    _step(runner, token, 0)
    row_s = _step(runner, token, 0)  # the second run is the one worth remembering
    scheduler.costs.observe(1, row_s)
    scheduler.decode_costs.observe(1, row_s)
    info = runner.info
    most = min(info.batch_tokens, info.context, info.capacity, info.max_outputs or info.batch_tokens)
    for drafts in (3, 7, 15):
        rows = drafts + 1
        if drafts > info.draft_tokens or rows > most or row_s * rows > LONGEST_S:
            break
        seconds = _step(runner, token, drafts)
        scheduler.decode_costs.observe(rows, seconds)
        row_s = seconds / rows


def _step(runner: TokenRunner, token: int, drafts: int) -> float:
    began = time.monotonic()
    runner.collect(runner.submit([Row(0, 0, (token,), _GREEDY, draft=(token,) * drafts)]))
    seconds = time.monotonic() - began
    runner.free(0)
    return seconds
