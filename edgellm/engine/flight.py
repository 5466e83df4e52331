"""What is in flight: steps that run, or wait for the device, and are not committed yet.

While one runs, the next may be planned as if every row had drawn its token and no job had ended. So a row may run for a
job that has left by then. What it draws is dropped; what it computed is right all the same, for it read the job's own
last token: so the job's sequence goes to the cache with it, but not before its step is over.
"""

from __future__ import annotations

from collections.abc import Sequence

from edgellm.contracts.runner import PREVIOUS, Row, RunnerInfo
from edgellm.engine.cache import PrefixCache
from edgellm.engine.job import Job
from edgellm.engine.speculation import Speculator
from edgellm.engine.step import Batch, Step


class Flight:
    """Steps in order of submission, two at most, and what waits for their end.

    leaving    jobs that left while a step carried a row of theirs, and whether their KV may serve others
    refused    jobs whose rows found no room
    """

    def __init__(self, info: RunnerInfo, cache: PrefixCache, speculator: Speculator) -> None:
        self._context = info.context
        self._ahead = info.pipeline_depth > 1 and not info.keeps_order
        self._cache = cache
        self._speculator = speculator
        self.steps: list[Step] = []
        self.leaving: dict[Job, bool] = {}
        self.refused: list[Job] = []

    def carries(self, job: Job) -> bool:
        """Whether a row of the job is in flight."""
        return any(job in step.jobs for step in self.steps)

    def following(self, active: Sequence[Job], guess: bool) -> Batch | None:
        """One more row for each job after the step in flight; None where that must be over first.

        It takes free cells and nothing else: nobody is admitted or gives way. With `guess`, no guess that would pay is
        passed over.
        """
        if not self._ahead or len(self.steps) != 1 or self.refused:
            return None
        batch = self._rows(active)
        if batch is None or not batch.rows or len(batch.rows) > self._cache.free:
            return None
        if guess and self._speculator.will_guess(batch.jobs, self._cache.placed):
            return None
        for row in batch.rows:
            self._cache.extend(row.sequence, 1)
        return batch

    def landed(self) -> list[tuple[Job, bool]]:
        """Those of `leaving` that no step carries any more; they are forgotten here."""
        done = [(job, keep) for job, keep in self.leaving.items() if not self.carries(job)]
        for job, _ in done:
            del self.leaving[job]
        return done

    def all_refused(self) -> list[Job]:
        """Those of `refused` that are still there, once nothing is in flight; they are forgotten here."""
        if self.steps:
            return []
        refused, self.refused = self.refused, []
        return [job for job in refused if job.sequence is not None]

    def abandoned(self) -> list[Job]:
        """Forget everything. Returns who had left and still has a sequence."""
        left = list(self.leaving)
        self.steps, self.leaving, self.refused = [], {}, []
        return left

    def _rows(self, active: Sequence[Job]) -> Batch | None:
        """As if every row in flight had drawn its token and no job had ended, but for those that draw their last.

        None where somebody needs to know first what is drawn: who is still in prefill, guessed ahead, looks back at the
        tokens before, remembers something of the last one, or slides in a context that is full then.
        """
        (step,) = self.steps
        before = dict(zip(step.jobs, step.rows, strict=True))
        batch = Batch()
        for job in active:
            row = before.get(job)
            if row is None or row.sample is None or row.draft or row.sample.looks_back or row.sample.mirostat:
                return None
            if row.position + 1 >= job.max_tokens:
                continue
            start = row.start + len(row.tokens)
            if start + 1 >= self._context:
                return None
            batch.add(job, Row(row.sequence, start, (PREVIOUS,), row.sample, row.position + 1, carry=row.carry))
        return batch
