"""Which jobs guess ahead, and how far: as far as the tokens to expect are worth the rows they cost.

A guess never changes the text: the runner keeps a guessed token only where it equals the one the sampler draws anyway.
So all that matters is time. How often guesses come true is measured per job, also while nobody acts on them (comparing
costs nothing); what rows cost is measured by the scheduler. A guess that stops paying stops being made.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

from edgellm.contracts.runner import RunnerInfo
from edgellm.engine.costs import StepCosts
from edgellm.engine.job import Job
from edgellm.engine.limits import Limits
from edgellm.engine.lookup import PromptLookup

GAIN = 1.03  # tokens per second must grow by this factor before a guess joins a step
_DECAY = 0.9  # of what was seen, with each new look
_WEIGHT = 4.0  # looks that the general experience counts for
# Equal tokens before a guess -> the chance that its next token is right, before anything was seen.
_PRIORS = ((3, 0.35), (5, 0.5), (8, 0.65), (16, 0.8))
_MODEL = len(_PRIORS)  # the kind of a draft model's guesses
_MODEL_PRIOR = 0.6
_SURE = 2  # from this kind on, a look-up is asked before a draft model
_PROBE = 24  # steps without a draft model's guess before it is asked for one token, to see whether it pays by now


class _Rate:
    """How often guessed tokens come true."""

    __slots__ = ("right", "seen")

    def __init__(self) -> None:
        self.right = self.seen = 0.0

    def add(self, right: int, seen: int) -> None:
        self.right = _DECAY * self.right + right
        self.seen = _DECAY * self.seen + seen

    def chance(self, prior: float) -> float:
        return (self.right + _WEIGHT * prior) / (self.seen + _WEIGHT)


class Proposer(Protocol):
    """Guesses how one text goes on."""

    def propose(self, tokens: list[int], most: int) -> tuple[list[int], int]:
        """Up to `most` tokens that may follow `tokens`, and how many tokens before them speak for it."""
        ...


class Guesses:
    """One job's experience, and the guess now standing."""

    def __init__(self, proposer: Proposer) -> None:
        self.proposer = proposer
        self.rates = [_Rate() for _ in range(_MODEL + 1)]
        self.unasked = 0  # steps since the draft model was asked
        self.tokens: Sequence[int] = ()
        self.kind = 0  # index into _PRIORS
        self.matched = 0  # tokens that speak for it
        self.used = 0  # tokens of it that went into the step


class Model(Protocol):
    """A draft model: guesses cost time, so how many are wanted is decided before."""

    token_s: float

    def propose(self, job: Job, most: int) -> list[int]: ...


class Speculator:
    """Decides for all jobs of one runner. `costs` are those of steps in which every token has logits."""

    def __init__(self, info: RunnerInfo, costs: StepCosts, limits: Limits) -> None:
        self.info = info
        self._costs = costs
        self._step_s = limits.decode_step_s
        self._mode = limits.drafts
        self._general = [_Rate() for _ in range(_MODEL + 1)]
        self.model: Model | None = None
        self.enabled = info.draft_tokens > 0 and limits.drafts != "off"
        self.proposer: Callable[[], Proposer] = PromptLookup  # one for each job

    def plan(self, jobs: Sequence[Job], placed: int = 0) -> dict[Job, Sequence[int]]:
        """Guesses worth making in a step in which every one of `jobs` decodes, with `placed` cells of KV used so far.

        None where a step of more rows would come out otherwise than one of fewer, unless that was allowed.
        """
        if not self.enabled:
            return {}
        chosen: dict[Job, Sequence[int]] = {}
        rows, expected = len(jobs), float(len(jobs))
        for job in jobs:
            if not job.drafts:
                continue
            guesses = self._look(job)
            room = self._room_for(rows, placed)
            if room > 0 and (guesses.tokens or self.model):
                count, gain = self._chosen(job, guesses, rows, expected, room)
                if count:
                    chosen[job] = guesses.tokens[:count]
                    guesses.used = count
                    rows, expected = rows + count, expected + gain
        return chosen

    def will_guess(self, jobs: Sequence[Job], placed: int = 0) -> bool:
        """Whether a guess should join the step after the one in flight, as far as can be told before that has drawn.

        If that draws what is expected, what is expected behind it has one token more to speak for it. A draft model
        reads every token, so that it is always waited for.
        """
        if not self.enabled:
            return False
        rows = len(jobs)
        for job in jobs:
            if not job.drafts:
                continue
            if self.model is not None:
                return True
            guesses = job.guesses
            if guesses is None or not guesses.tokens:
                guesses = self._look(job)
            most = min(len(guesses.tokens) - 1, self._room_for(rows, placed))
            if most > 0 and self._worth(guesses, _kind(guesses.matched + 1), most, rows, float(rows))[0]:
                return True
        return False

    def withdraw(self, jobs: Iterable[Job]) -> None:
        """These guesses did not go into the step after all."""
        for job in jobs:
            if job.guesses is not None:
                job.guesses.used = 0

    def learn(self, job: Job, drawn: Sequence[int]) -> None:
        """What a job drew, whether its guess was acted on or not."""
        guesses = job.guesses
        if guesses is None or not guesses.tokens or not drawn:
            return
        looked = max(1, guesses.used)
        right = 0
        for guess, token in zip(guesses.tokens[:looked], drawn, strict=False):
            if guess != token:
                break
            right += 1
        seen = min(right + 1, looked)
        for rate in (guesses.rates[guesses.kind], self._general[guesses.kind]):
            rate.add(right, seen)
        if guesses.used:
            job.drafted += guesses.used
            job.accepted += right
        guesses.tokens, guesses.used = (), 0

    def _look(self, job: Job) -> Guesses:
        if job.guesses is None:
            job.guesses = Guesses(self.proposer())
        guesses = job.guesses
        guesses.tokens, guesses.matched = guesses.proposer.propose(job.tokens, self._room(job))
        guesses.kind = _kind(guesses.matched)
        guesses.used = 0
        return guesses

    def _chosen(self, job: Job, guesses: Guesses, rows: int, expected: float, room: int) -> tuple[int, float]:
        """How many guessed tokens to compute, the draft model's where there is no better guess, and what they add."""
        if self.model is None or (guesses.tokens and guesses.kind >= _SURE):
            return self._worth(guesses, guesses.kind, min(len(guesses.tokens), room), rows, expected)
        most = min(room, self._room(job))
        count, gain = self._worth(guesses, _MODEL, most, rows, expected, self.model.token_s)
        guesses.unasked += 1
        if not count and (most <= 0 or guesses.unasked < _PROBE):
            return 0, 0.0
        guesses.tokens, guesses.kind, guesses.unasked = self.model.propose(job, max(1, count)), _MODEL, 0
        found = min(count, len(guesses.tokens))
        return found, gain if found else 0.0

    def _room_for(self, rows: int, placed: int) -> int:
        """Guessed tokens that a step of `rows` rows may take, with `placed` cells of KV used so far."""
        exact = self.info.batch_tokens if self._mode == "always" else self.info.exact_cells - placed
        return min(self.info.max_outputs, self.info.batch_tokens, exact) - rows

    def _room(self, job: Job) -> int:
        return min(self.info.draft_tokens, job.remaining - 1, self.info.context - len(job.tokens) - 1)

    def _worth(
        self, guesses: Guesses, kind: int, most: int, rows: int, expected: float, token_s: float = 0.0
    ) -> tuple[int, float]:
        """How many of `most` guessed tokens to compute, and how many drawn tokens they will add."""
        prior = _MODEL_PRIOR if kind == _MODEL else _PRIORS[kind][1]
        chance = guesses.rates[kind].chance(self._general[kind].chance(prior))
        seconds = self._costs.predict(rows)
        if seconds <= 0:
            return 0, 0.0
        best, best_count, best_gain = GAIN * expected / seconds, 0, 0.0
        gain = 0.0
        for count in range(1, most + 1):
            gain += chance**count
            seconds = self._costs.predict(rows + count) + count * token_s
            if seconds > self._step_s:
                break
            if (expected + gain) / seconds > best:
                best, best_count, best_gain = (expected + gain) / seconds, count, gain
        return best_count, best_gain


def _kind(matched: int) -> int:
    """Of a guess that so many equal tokens speak for."""
    return max((i for i, (least, _) in enumerate(_PRIORS) if matched >= least), default=0)
