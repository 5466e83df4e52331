"""A step: the rows that run together, whose they are, and what came of them."""

from __future__ import annotations

import msgspec

from edgellm.contracts.runner import Logprob, Row, RowError
from edgellm.engine.job import Job


class Step(msgspec.Struct):
    """What runs at once; `jobs[i]` owns `rows[i]`."""

    rows: list[Row]
    jobs: list[Job]
    tokens: int
    pairs: float  # for each token, the tokens that it looks at
    predicted_s: float


class Drawn(msgspec.Struct):
    """A job drew a token; several in one step where guesses came true."""

    job: Job
    token: int
    logprob: Logprob | None = None


class Broken(msgspec.Struct):
    """A job cannot go on: its logits were not finite, or it does not fit even alone. The caller removes it."""

    job: Job
    reason: RowError


class Batch:
    """A step being put together."""

    def __init__(self) -> None:
        self.rows: list[Row] = []
        self.jobs: list[Job] = []

    def add(self, job: Job, row: Row) -> None:
        self.rows.append(row)
        self.jobs.append(job)

    @property
    def tokens(self) -> int:
        return sum(len(row.tokens) + len(row.draft) for row in self.rows)

    @property
    def pairs(self) -> float:
        return sum(pairs(row.start, len(row.tokens) + len(row.draft)) for row in self.rows)

    def drop(self, job: Job) -> None:
        """Take a job's row out again: it has just lost its sequence."""
        if job in self.jobs:
            index = self.jobs.index(job)
            del self.rows[index], self.jobs[index]


def pairs(start: int, count: int) -> float:
    """What `count` tokens from position `start` on look at, all before them and half of themselves."""
    return count * (start + count / 2)
