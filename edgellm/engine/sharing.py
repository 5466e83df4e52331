"""Who waits for whom: a prompt that begins like one being prefilled now. Pure.

It waits for that one, its leader, to come to where they part, and forks there: what they share is computed once.
"""

from __future__ import annotations

from collections.abc import Iterable

from edgellm.engine.cache import PrefixCache
from edgellm.engine.job import Job
from edgellm.engine.prefix import common_prefix

WORTH_WAITING = 64  # tokens: a shared prefix shorter than this is not waited for


def shared(lead: Job, job: Job) -> int:
    """Tokens of `job` that `lead` computes or will compute, 0 where too few; the last one is never shared."""
    if lead.decoding or lead.key != job.key or lead.tokens[:WORTH_WAITING] != job.tokens[:WORTH_WAITING]:
        return 0  # the quick look first: this runs for every waiting job in every step
    return min(common_prefix(lead.tokens, job.tokens), len(job.tokens) - 1, len(lead.tokens) - 1)


def leader(job: Job, active: Iterable[Job], cache: PrefixCache) -> Job | None:
    """A job in prefill now that will soon hold more of this one's prompt than the cache does: wait for it."""
    for other in active:
        common = shared(other, job)
        if common <= other.computed or other.priority > job.priority:
            continue
        held = cache.held(job.tokens, job.key)
        # What the leader itself holds already does not speak against waiting for the rest.
        if held < common and (held <= other.computed or common - held >= WORTH_WAITING):
            return other
    return None


def forks_now(job: Job, leaders: Iterable[Job]) -> bool:
    """Whether one of them has come to where `job` parts from it."""
    return any(shared(lead, job) == lead.computed for lead in leaders)


def next_chunk(job: Job, waiting: Iterable[Job]) -> int:
    """Tokens to compute next, cut where another job waits to fork: windows forget what lies further back."""
    end = len(job.tokens)
    for other in waiting:
        common = shared(job, other)
        if job.computed < common < end:
            end = common
    return end - job.computed
