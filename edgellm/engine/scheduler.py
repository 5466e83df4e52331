"""Which tokens go into the next step. Pure Python: no I/O, no engine, no clock of its own.

    plan(now) -> Step        frees and rows to run, or None when there is nothing to do
    commit(step, results)    what became of the rows -> drawn tokens and failures

Rules, in this order:
  - Every decoding job gets its row: those who read must not wait.
  - Prefill fills what is left of the step: of its tokens and of its time (a step stays under `decode_step_s` while
    anyone decodes, under `step_s` otherwise, as far as chunks of MIN_CHUNK allow).
  - Among prefills, lower `priority` first; within one, least predicted work first minus the time already waited: short
    prompts overtake long ones, and waiting as long as the difference makes up for it, so nobody starves.
  - When KV runs out, the lowest and latest job gives up its sequence and is computed again later. Its text does not
    change: draws depend on the position alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from edgellm.contracts.engine import Result, Row, RowError, RunnerInfo
from edgellm.engine.costs import StepCosts
from edgellm.engine.job import Job
from edgellm.engine.ledger import Ledger
from edgellm.engine.limits import Limits

MIN_CHUNK = 64  # prefill below this wastes the matrix units
HEADROOM = 32  # tokens kept for each job's answer before the next is let in, lest it be suspended at once


class Step(msgspec.Struct):
    """One batch: sequences to free first, then rows; `jobs[i]` owns `rows[i]`."""

    frees: list[int]
    rows: list[Row]
    jobs: list[Job]
    tokens: int
    predicted_s: float


class Drawn(msgspec.Struct):
    """A job drew a token."""

    job: Job
    token: int


class Broken(msgspec.Struct):
    """A job cannot go on: its logits were not finite, or it does not fit even alone. The caller removes it."""

    job: Job
    reason: RowError


class Scheduler:
    """Owns the jobs, the ledger and the cost model of one runner."""

    def __init__(
        self, info: RunnerInfo, limits: Limits | None = None, costs: StepCosts | None = None
    ) -> None:
        self._info = info
        self._limits = limits or Limits()
        self.costs = costs or StepCosts()
        self.ledger = Ledger(info.capacity, info.max_sequences)
        self.waiting: list[Job] = []
        self.active: list[Job] = []  # hold a sequence, in order of admission
        self._frees: list[int] = []

    # -- jobs ------------------------------------------------------------------------------------

    def add(self, job: Job) -> None:
        """Queue a job. Its prompt and its answer must fit the context; the caller has checked."""
        self.waiting.append(job)

    def remove(self, job: Job) -> None:
        """Forget a job that ended or was cancelled, wherever it is."""
        if job.sequence is None:
            self.waiting.remove(job)
        else:
            self.active.remove(job)
            self._release(job)

    @property
    def idle(self) -> bool:
        return not (self.waiting or self.active or self._frees)

    # -- one step --------------------------------------------------------------------------------

    def plan(self, now: float) -> Step | None:
        """The next step, or None when nothing can run."""
        decoding = [job for job in self.active if job.decoding]
        while len(decoding) > self.ledger.free:
            decoding = [job for job in decoding if job is not self._suspend()]
        rows: list[Row] = []
        jobs: list[Job] = []
        for job in decoding:
            self._add_row(job, 1, rows, jobs)
        tokens = len(rows) + self._prefill(now, bool(rows), len(rows), rows, jobs)
        if not rows and not self._frees:
            return None
        frees, self._frees = self._frees, []
        return Step(frees, rows, jobs, tokens, self.costs.predict(tokens))

    def commit(
        self, step: Step, results: Sequence[Result], now: float, seconds: float
    ) -> list[Drawn | Broken]:
        """Take the results of a step that took `seconds`."""
        outcomes: list[Drawn | Broken] = []
        refused = [job for job, result in zip(step.jobs, results, strict=True) if result.error == "no_room"]
        if refused:
            outcomes.extend(self._make_room(refused))
        else:
            self.costs.observe(step.tokens, seconds)
        for job, row, result in zip(step.jobs, step.rows, results, strict=True):
            if result.error == "no_room" or job.sequence is None:
                continue
            job.computed += len(row.tokens)
            if result.error == "nan":
                outcomes.append(Broken(job, "nan"))
            elif result.token is not None:
                job.record(result.token, now)
                outcomes.append(Drawn(job, result.token))
        return outcomes

    # -- prefill ---------------------------------------------------------------------------------

    def _prefill(self, now: float, decoding: bool, used: int, rows: list[Row], jobs: list[Job]) -> int:
        """Add prefill rows; returns their tokens."""
        limit = self._limits.decode_step_s if decoding else self._limits.step_s
        room = min(self._info.batch_tokens - used, self.ledger.free)
        budget = self.costs.fits(limit, used + min(MIN_CHUNK, room), used + room) - used
        if not self.costs.known(MIN_CHUNK):
            budget = min(budget, MIN_CHUNK)  # measure once before trusting a large chunk
        added = 0
        full = False  # once a job cannot be admitted, no later one may take the room it waits for
        for job in self._prefill_order(now):
            count = min(job.pending, budget - added)
            if count <= 0:
                break
            if job.sequence is None:
                full = full or not self._admit(job)
                if full:
                    continue
            if job.first_step is None:
                job.first_step = now
            self._add_row(job, count, rows, jobs)
            added += count
        return added

    def _prefill_order(self, now: float) -> list[Job]:
        """Jobs with a prompt to compute, most urgent first."""
        candidates = [job for job in self.active if not job.decoding] + self.waiting
        rate = self.costs.predict(self._info.batch_tokens) / self._info.batch_tokens  # s per token
        return sorted(
            candidates, key=lambda job: (job.priority, job.pending * rate - (now - job.arrived), job.arrived)
        )

    def _admit(self, job: Job) -> bool:
        """Give a waiting job a sequence when its tokens fit beside what the active ones still have to write."""
        promised = sum(other.pending + min(HEADROOM, other.remaining) for other in self.active)
        headroom = min(HEADROOM, job.remaining) if self.active else 1
        if not self.ledger.free_sequences or job.pending + headroom > self.ledger.free - promised:
            return False
        job.sequence = self.ledger.open()
        job.computed = 0
        self.waiting.remove(job)
        self.active.append(job)
        return True

    def _add_row(self, job: Job, count: int, rows: list[Row], jobs: list[Job]) -> None:
        assert job.sequence is not None
        start = job.computed
        last = count == job.pending
        self.ledger.extend(job.sequence, count)
        rows.append(
            Row(
                job.sequence,
                start,
                job.tokens[start : start + count],
                job.sample if last else None,
                job.generated,
            )
        )
        jobs.append(job)

    # -- running out of room ---------------------------------------------------------------------

    def _suspend(self) -> Job:
        """Take the sequence from the lowest, latest job and queue it again."""
        job = max(self.active, key=lambda j: (j.priority, j.arrived))
        self.active.remove(job)
        self._release(job)
        job.suspensions += 1
        self.waiting.append(job)
        return job

    def _make_room(self, refused: Iterable[Job]) -> list[Broken]:
        """The runner had less room than the ledger believed: its word counts."""
        for job in refused:
            if job.sequence is not None:
                self.ledger.truncate(job.sequence, job.computed)
        if len(self.active) == 1:
            return [Broken(self.active[0], "no_room")]
        self._suspend()
        return []

    def _release(self, job: Job) -> None:
        assert job.sequence is not None
        self.ledger.close(job.sequence)
        self._frees.append(job.sequence)
        job.sequence = None
        job.computed = 0
