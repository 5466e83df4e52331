"""Which tokens go into the next step. Pure Python: no I/O, no engine library, no clock of its own.

    plan(now) -> Step        rows to run, or None when there is nothing to do
    plan_ahead() -> Step     one more while that runs, or None where it must end first (`flight.py`)
    commit(step, results)    what became of the rows -> drawn tokens and failures

Rules, in this order:
  - Every decoding job gets its row: those who read must not wait. Where nothing is to be prefilled, guesses of the
    tokens to follow join as far as they pay (`speculation.py`).
  - Prefill fills what is left of the step: of its tokens and of its time (a step stays under `decode_step_s` while
    anyone decodes, under `step_s` otherwise, as far as chunks of MIN_CHUNK allow: `budget.py`).
  - Among prefills, lower `priority` first; within one, least predicted work first minus the time already waited: short
    prompts and prompts with a cached prefix overtake, and waiting as long as the difference makes up for it, so nobody
    starves.
  - A prompt that shares a prefix with one being prefilled now waits for it and forks: the prefix is computed once
    (`sharing.py`).
  - When KV runs out, the lowest and latest job gives up its sequence and resumes later, also for a waiting job of
    higher priority. Its text does not change: draws depend on the position alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from edgellm.contracts.runner import Result, Row, RunnerInfo
from edgellm.engine.budget import StepBudget
from edgellm.engine.cache import KvMemory, PrefixCache
from edgellm.engine.costs import StepCosts
from edgellm.engine.flight import Flight
from edgellm.engine.job import Job
from edgellm.engine.limits import Limits
from edgellm.engine.sharing import forks_now, leader, next_chunk
from edgellm.engine.speculation import Speculator
from edgellm.engine.step import Batch, Broken, Drawn, Step

HEADROOM = 32  # tokens kept for each job's answer before the next is let in, lest it be suspended at once


class Scheduler:
    """Owns the jobs, the KV cache and the cost model of one runner."""

    def __init__(
        self, info: RunnerInfo, memory: KvMemory, limits: Limits | None = None, costs: StepCosts | None = None
    ) -> None:
        self._info = info
        self._limits = limits or Limits()
        self.costs = costs or StepCosts()
        self.decode_costs = StepCosts()  # of steps in which every token has logits
        self.speculator = Speculator(info, self.decode_costs, self._limits)
        self.cache = PrefixCache(memory, info, self._limits)
        self.waiting: list[Job] = []
        self.active: list[Job] = []  # hold a sequence, in order of admission
        self.suspended = 0  # how often a job had to give way
        self._flight = Flight(info, self.cache, self.speculator)
        self._full = False  # nobody who waits can be admitted before somebody leaves

    # -- jobs ------------------------------------------------------------------------------------

    def add(self, job: Job) -> None:
        """Queue a job. Its prompt and its answer must fit the context; the caller has checked."""
        self.waiting.append(job)
        self._full = False

    def remove(self, job: Job, *, keep: bool = True) -> None:
        """Forget a job that ended or was cancelled, wherever it is. `keep`: its KV may serve others."""
        self._full = False
        if job.sequence is None:
            self.waiting.remove(job)
        else:
            self.active.remove(job)
            if self._flight.carries(job):
                self._flight.leaving[job] = keep
            else:
                self._release(job, keep=keep)
        if self.idle:
            self.cache.settle()

    def slide(self, job: Job, keep: int) -> int:
        """Forget half of what a job holds after its first `keep` tokens; the rest is computed again. Returns how many.

        Computed, not moved: a token's KV depends on all before it, and no engine need know how to turn positions.
        """
        dropped = (len(job.tokens) - keep) // 2
        kept = job.tokens[:keep]
        if job.sequence is not None and self.cache.give_back(job.sequence, kept, job.key):
            job.computed = keep
        elif job.sequence is not None:
            self.active.remove(job)
            self._release(job, keep=False)
            self.add(job)
        job.tokens = kept + job.tokens[keep + dropped :]
        job.guesses = None
        return dropped

    @property
    def idle(self) -> bool:
        return not (self.waiting or self.active or self._flight.steps)

    # -- one step --------------------------------------------------------------------------------

    def plan(self, now: float) -> Step | None:
        """The next step, or None when nothing can run. No step may be in flight."""
        assert not self._flight.steps
        while self._info.keeps_order and not self.cache.in_order():
            self._suspend(self._lowest())
        decoding = [job for job in self.active if job.decoding]
        while decoding and not self.cache.make_room(len(decoding)):
            suspended = self._suspend(self._lowest())
            decoding = [job for job in decoding if job is not suspended]
        batch = Batch()
        guesses = self._guesses(decoding)
        for job in decoding:
            self._add_row(batch, job, 1, guesses.get(job, ()))
        self._prefill(batch, now)
        while not batch.rows and len(self.active) > 1:  # prompts that fill the pool between them
            self._suspend(self._lowest())
            self._prefill(batch, now)
        if not batch.rows:
            return None
        return self._started(batch)

    def plan_ahead(self) -> Step | None:
        """The step after the one in flight, as if that had drawn and nobody had ended; None: it must be over first."""
        if self.waiting and not self._full:
            return None
        batch = self._flight.following(self.active, guess=not self.waiting)
        return self._started(batch) if batch is not None else None

    def _started(self, batch: Batch) -> Step:
        predicted_s = self.costs.predict(batch.tokens, batch.pairs)
        step = Step(batch.rows, batch.jobs, batch.tokens, batch.pairs, predicted_s)
        self._flight.steps.append(step)
        return step

    def commit(self, step: Step, results: Sequence[Result], now: float, seconds: float) -> list[Drawn | Broken]:
        """Take the results of the first step in flight; the device was busy with it for `seconds`."""
        self._flight.steps.pop(0)
        outcomes: list[Drawn | Broken] = []
        refused = [job for job, result in zip(step.jobs, results, strict=True) if result.error == "no_room"]
        if not refused:
            self.costs.observe(step.tokens, seconds, step.pairs)
            if all(row.sample is not None and len(row.tokens) == 1 for row in step.rows):
                self.decode_costs.observe(step.tokens, seconds)
        for job, row, result in zip(step.jobs, step.rows, results, strict=True):
            if result.error != "no_room":
                outcomes += self._take(job, row, result, now)
        self._flight.refused += refused
        return outcomes + self._landed()

    def _take(self, job: Job, row: Row, result: Result, now: float) -> list[Drawn | Broken]:
        """Count what a row has computed, and give its job what was drawn."""
        accepted = result.tokens[:-1]
        computed = [*job.tokens[row.start : row.start + len(row.tokens)], *accepted]
        job.computed += len(computed)
        assert job.sequence is not None
        if row.draft:
            self.cache.shrink(job.sequence, job.computed)
        if job in self._flight.leaving:  # it ended while this ran: what was drawn is nobody's
            # It may have left before the token that this row took was told.
            known = len(computed) == len(row.tokens) + len(accepted)
            self._flight.leaving[job] &= known and result.error is None
            self.cache.computed(job.sequence, computed)
            return []
        if result.error == "nan":
            return [Broken(job, "nan")]
        self.cache.computed(job.sequence, computed)
        self.speculator.learn(job, result.tokens)
        job.carry = result.carry
        drawn: list[Drawn | Broken] = []
        for index, token in enumerate(result.tokens):
            job.record(token, now)
            drawn.append(Drawn(job, token, result.logprobs[index] if result.logprobs else None))
        return drawn

    def abandon(self) -> None:
        """The engine failed: nothing is in flight any more, and what that did to its sequences is unknown."""
        for job in self._flight.abandoned():
            self._release(job, keep=False)

    def _landed(self) -> list[Broken]:
        """After a step: what waited for its end."""
        for job, keep in self._flight.landed():
            self._release(job, keep=keep)
        if self.idle:
            self.cache.settle()
        refused = self._flight.all_refused()
        return self._make_room(refused) if refused else []

    # -- prefill ---------------------------------------------------------------------------------

    def _prefill(self, batch: Batch, now: float) -> None:
        """Add prefill rows within what is left of the step."""
        self._full = False
        if not self.waiting and all(job.decoding for job in self.active):
            return  # the usual case while answers are written
        self._admit_followers(now, batch)
        allowed = StepBudget(batch, self.active, self._info, self._limits, self.costs)
        for job in self._prefill_order(now):
            if self._full and job.sequence is None:
                continue  # once a job cannot be admitted, no later one may take the room it waits for
            if batch.tokens >= allowed.tokens(job):
                break
            if job.sequence is None:
                if leader(job, self.active, self.cache) is not None:
                    continue
                if not self._admit(job, now, batch):
                    self._full = True
                    continue
            budget = allowed.tokens(job)
            self._go_back(job, allowed.start(job, budget))
            count = min(next_chunk(job, self.waiting), budget - batch.tokens)
            if count <= 0 or not self.cache.make_room(count):
                break
            self._add_row(batch, job, count)

    def _go_back(self, job: Job, length: int) -> None:
        """Compute again what lies at and beyond position `length`, where the runner can cut there."""
        assert job.sequence is not None
        if length < job.computed and self.cache.give_back(job.sequence, job.tokens[:length], job.key):
            job.computed = length
            job.cached = min(job.cached, length)

    def _prefill_order(self, now: float) -> list[Job]:
        """Jobs with a prompt to compute, most urgent first."""
        candidates = [job for job in self.active if not job.decoding] + self.waiting
        if len(candidates) < 2:
            return candidates
        rate = self.costs.predict(self._info.batch_tokens) / self._info.batch_tokens  # s per token

        def urgency(job: Job) -> tuple[int, float, float]:
            return (job.priority, self._work(job) * rate - (now - job.arrived), job.arrived)

        return sorted(candidates, key=urgency)

    def _work(self, job: Job) -> int:
        """Tokens to compute before the next draw, a cached prefix taken off."""
        if job.sequence is not None:
            return job.pending
        return len(job.tokens) - self.cache.held(job.tokens, job.key)

    def _admit_followers(self, now: float, batch: Batch) -> None:
        """Let those who waited for a prefix fork where it ends, before its leader goes on: windows forget behind it."""
        leaders = [job for job in self.active if job.computed and not job.decoding]
        for job in list(self.waiting) if leaders else ():
            if forks_now(job, leaders) and not self._admit(job, now, batch):
                return

    def _add_row(self, batch: Batch, job: Job, count: int, guess: Sequence[int] = ()) -> None:
        assert job.sequence is not None
        start = job.computed
        last = count == job.pending
        self.cache.extend(job.sequence, count + len(guess))
        tokens = job.tokens[start : start + count]
        if last:
            history = job.tokens if job.sample.looks_back else ()
            row = Row(job.sequence, start, tokens, job.sample, job.generated, guess, history, job.carry)
        else:
            row = Row(job.sequence, start, tokens)
        batch.add(job, row)

    def _guesses(self, decoding: list[Job]) -> dict[Job, Sequence[int]]:
        """Tokens to guess ahead, where no prompt waits for the rows and there is room."""
        if self.waiting or len(decoding) < len(self.active):
            return {}
        if self._info.keeps_order and len(decoding) > 1:
            return {}  # what is not accepted would leave holes for others to grow into
        guesses = self.speculator.plan(decoding, self.cache.placed)
        room = len(decoding) + sum(len(guess) for guess in guesses.values())
        if self.cache.make_room(room):
            return guesses
        self.speculator.withdraw(guesses)
        return {}

    # -- admission and suspension ------------------------------------------------------------------

    def _admit(self, job: Job, now: float, batch: Batch) -> bool:
        """Give a waiting job a sequence, from lower priorities if need be, when its tokens fit beside the others'."""
        while not self._fits(job):
            lowest = self._lowest() if self.active else None
            if lowest is None or lowest.priority <= job.priority:
                return False
            batch.drop(self._suspend(lowest))
        job.sequence, job.computed = self.cache.open(job.tokens, job.key)
        if job.first_step is None:
            job.first_step = now
            job.cached = job.computed
        self.waiting.remove(job)
        self.active.append(job)
        return True

    def _fits(self, job: Job) -> bool:
        if len(self.active) >= self._limits.max_running or not self.cache.free_sequences:
            return False
        promised = sum(self._lacking(other) + min(HEADROOM, other.remaining) for other in self.active)
        headroom = min(HEADROOM, job.remaining) if self.active else 1
        need = len(job.tokens) - self.cache.held_running(job.tokens, job.key) + headroom
        return need <= self._info.capacity - self.cache.running_cells - promised

    def _lacking(self, job: Job) -> int:
        """Tokens of a running job that have no cells yet: those of rows in this step have."""
        assert job.sequence is not None
        return max(0, len(job.tokens) - self.cache.length(job.sequence))

    def _lowest(self) -> Job:
        """The first to give way: of the lowest priority the latest."""
        return max(reversed(self.active), key=lambda job: (job.priority, job.arrived))

    def _suspend(self, job: Job) -> Job:
        """Take a job's sequence and queue it again. Its KV stays in the cache while there is room for it."""
        self.active.remove(job)
        self._release(job, keep=True)
        job.suspensions += 1
        self.suspended += 1
        self.add(job)
        return job

    def _make_room(self, refused: Iterable[Job]) -> list[Broken]:
        """The runner had less room than the ledger believed: its word counts."""
        for job in refused:
            if job.sequence is not None:
                self.cache.shrink(job.sequence, job.computed)
        if self.cache.let_go_all():
            return []
        if len(self.active) == 1:
            return [Broken(self.active[0], "no_room")]
        self._suspend(self._lowest())
        return []

    def _release(self, job: Job, *, keep: bool) -> None:
        assert job.sequence is not None
        self.cache.shrink(job.sequence, job.computed)  # a row that was planned and never ran
        self.cache.retire(job.sequence, keep=keep)
        job.sequence = None
        job.computed = 0
