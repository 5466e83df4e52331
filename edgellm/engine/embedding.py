"""EmbeddingCore: texts in, vectors out, one call of the engine at a time. The counterpart of EngineCore.

Calls are filled by turns, a text of each request after the other: one that brings two thousand texts does not hold up
one that brings one. Used from one thread; does no I/O.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from edgellm.contracts.embedding import EmbeddingRunner, EmbedRequest
from edgellm.contracts.events import Embedded, Event, Failed, Finished, Started, Timings, Usage
from edgellm.engine.limits import Limits
from edgellm.engine.pacing import Emission
from edgellm.errors import ContextExceeded, EdgeError, GenerationFailed, InvalidRequest, Overloaded

LARGEST_ANSWER = 48 << 20  # bytes of vectors: they travel in one frame


class _Job:
    """One request: its texts as token ids, and the vectors that are there."""

    __slots__ = ("accepted", "begun", "left", "next", "request", "texts", "vectors")

    def __init__(self, request: EmbedRequest, texts: Sequence[Sequence[int]], dimensions: int) -> None:
        self.request = request
        self.texts = texts
        self.vectors = np.zeros((len(texts), dimensions), "<f4")
        self.next = 0  # the first text no call has taken
        self.left = len(texts)  # vectors that are not there
        self.accepted = time.monotonic()
        self.begun = 0.0

    @property
    def tokens(self) -> int:
        return sum(map(len, self.texts))


class EmbeddingCore:
    """One loaded model embedding for many requests."""

    def __init__(self, model: str, runner: EmbeddingRunner, *, limits: Limits | None = None) -> None:
        self._model = model
        self._runner = runner
        self._limits = limits or Limits()
        self._jobs: list[_Job] = []
        self.steps = 0
        self.step_started = 0.0  # 0 between steps; read by the heartbeat thread
        self.step_predicted = 0.0  # seconds of the step that runs or ran last
        self._token_s = 0.0  # seconds each token took in the last call: of a short one far more than of a long one

    @property
    def idle(self) -> bool:
        return not self._jobs

    @property
    def running(self) -> int:
        """Requests of which something is computed."""
        return sum(1 for job in self._jobs if job.begun)

    @property
    def waiting(self) -> int:
        return len(self._jobs) - self.running

    def warm_up(self) -> None:
        """Two calls before the model counts as ready: the first allocates and pages in, the second is measured."""
        info = self._runner.info
        for _ in range(2):
            self._embed([(*info.before, *info.after) or (0,)])

    def add(self, request: EmbedRequest, texts: Sequence[Sequence[int]]) -> list[Emission]:
        """Accept a request, or say why not. Texts come with what belongs around them."""
        try:
            self._check(texts)
        except EdgeError as error:
            return [(request.id, Failed(error.info))]
        job = _Job(request, texts, self._runner.info.dimensions)
        self._jobs.append(job)
        self._jobs.sort(key=lambda each: each.request.priority)  # stable: first come, first served
        return [(request.id, Started(job.tokens, 0, 0))]

    def cancel(self, request_id: str) -> None:
        self._jobs = [job for job in self._jobs if job.request.id != request_id]

    def fail_all(self, error: EdgeError) -> list[Emission]:
        """End everything with that error."""
        jobs, self._jobs = self._jobs, []
        return [(job.request.id, Failed(error.info)) for job in jobs]

    def step(self) -> list[Emission]:
        """One call of the engine, and the answers it completes."""
        taken = self._take()
        if not taken:
            return []
        self.steps += 1
        vectors = self._embed([job.texts[index] for job, index in taken])
        emitted: list[Emission] = []
        for (job, index), vector in zip(taken, vectors, strict=True):
            length = float(np.linalg.norm(vector))
            if not np.isfinite(length):
                self.cancel(job.request.id)
                error = GenerationFailed(f"{self._model} made a vector that is no number of text {index}")
                emitted.append((job.request.id, Failed(error.info)))
                continue
            job.vectors[index] = vector / length if length else vector
            job.left -= 1
        return emitted + self._completed()

    def _embed(self, texts: Sequence[Sequence[int]]) -> npt.NDArray[np.float32]:
        tokens = sum(map(len, texts))
        self.step_predicted = tokens * self._token_s
        self.step_started = began = time.monotonic()
        try:
            vectors = self._runner.embed(texts)
        finally:
            self.step_started = 0.0
        self._token_s = (time.monotonic() - began) / max(1, tokens)
        return vectors

    def _take(self) -> list[tuple[_Job, int]]:
        """What goes into the next call: the most urgent requests by turns, as far as there is room."""
        info = self._runner.info
        taken: list[tuple[_Job, int]] = []
        room = info.batch_tokens
        while len(taken) < info.batch_texts:
            before = len(taken)
            for job in self._jobs:
                if job.next < len(job.texts) and len(job.texts[job.next]) <= room and len(taken) < info.batch_texts:
                    taken.append((job, job.next))
                    room -= len(job.texts[job.next])
                    job.next += 1
                    job.begun = job.begun or time.monotonic()
            if len(taken) == before:
                break
        return taken

    def _completed(self) -> list[Emission]:
        done = [job for job in self._jobs if not job.left]
        self._jobs = [job for job in self._jobs if job.left]
        return [(job.request.id, event) for job in done for event in self._answer(job)]

    def _answer(self, job: _Job) -> tuple[Event, Event]:
        now = time.monotonic()
        spans = Timings(
            queue_s=job.begun - job.accepted, prefill_s=now - job.begun, decode_s=0.0, total_s=now - job.accepted
        )
        vectors = Embedded(job.vectors.tobytes(), job.vectors.shape[1])
        return vectors, Finished(Usage(job.tokens, 0), spans)

    def _check(self, texts: Sequence[Sequence[int]]) -> None:
        info = self._runner.info
        if len(texts) * info.dimensions * 4 > LARGEST_ANSWER:
            most = LARGEST_ANSWER // (info.dimensions * 4)
            raise InvalidRequest(f"{len(texts)} texts are too many for one request: at most {most}", param="input")
        for index, text in enumerate(texts):
            if len(text) > info.context:
                raise too_long(f"{len(text):,}", self._model, info.context, index if len(texts) > 1 else None)
        queued = sum(job.tokens for job in self._jobs)
        if len(self._jobs) >= self._limits.queue_requests or queued > self._limits.queue_tokens:
            raise Overloaded(f"too much is waiting for {self._model}", hint="try again in a moment", retry_after=1.0)


def too_long(tokens: str, model: str, context: int, index: int | None) -> ContextExceeded:
    """`index` of the text among several."""
    return ContextExceeded(
        f"text {index or 0} has {tokens} tokens; {model} takes at most {context:,}",
        hint="cut it into parts and embed each",
        param="input" if index is None else f"input[{index}]",
    )
