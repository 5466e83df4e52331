"""How many tokens a step may have when prompts join it. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from edgellm.contracts.runner import RunnerInfo
from edgellm.engine.costs import StepCosts
from edgellm.engine.job import Job
from edgellm.engine.limits import Limits
from edgellm.engine.step import Batch, pairs

MIN_CHUNK = 64  # rows of a step with prefill, if there are as many: fewer waste the matrix units
DEEP = 512  # tokens of context from which the attention of a prefill step outweighs the rest


class StepBudget:
    """What one step may still take, `batch` in it already: decode rows at first, then more and more of prompts."""

    def __init__(self, batch: Batch, active: Iterable[Job], info: RunnerInfo, limits: Limits, costs: StepCosts) -> None:
        self._batch = batch
        self._info = info
        self._costs = costs
        self._limit_s = limits.decode_step_s if batch.rows else limits.step_s
        # Over a long context, one row more than a tile costs as much as a whole tile more.
        deep = any(job.computed >= DEEP and not job.decoding for job in active)
        least = max(MIN_CHUNK, batch.tokens + MIN_CHUNK // 2) if deep else batch.tokens + MIN_CHUNK
        self._least = min(least, info.batch_tokens)  # in any case, if there are as many

    def tokens(self, job: Job) -> int:
        """Tokens the whole step may have when `job` goes on in it, what it has already included."""
        if not self._costs.known(MIN_CHUNK):
            return self._least  # measure once before trusting a large chunk
        taken, before = self._batch.tokens, self._batch.pairs

        def looked_at(tokens: int) -> float:
            return before + pairs(job.computed, tokens - taken)

        fitting = self._costs.fits(self._limit_s, max(self._least, taken), self._info.batch_tokens, looked_at)
        deep = job.computed >= DEEP
        return max(self._least, fitting - fitting % self._info.prefill_tile) if deep else fitting

    def start(self, job: Job, budget: int) -> int:
        """Where `job` goes on: some cached tokens earlier, if a step of a whole tile is faster than a smaller one.

        Below a tile, attention costs per row and context: on some CPUs a step of 36 rows takes twice as long as one of
        64, on others half. What was measured decides.
        """
        batch, costs, tile = self._batch, self._costs, self._info.prefill_tile
        rows = batch.tokens + job.pending
        missing = tile - rows
        if missing <= 0 or 4 * job.pending < tile or missing > job.computed or tile > budget:
            return job.computed
        earlier = job.computed - missing
        whole = batch.pairs + pairs(earlier, tile - batch.tokens)
        smaller = batch.pairs + pairs(job.computed, job.pending)
        return earlier if costs.predict(tile, whole) < costs.predict(rows, smaller) else job.computed
