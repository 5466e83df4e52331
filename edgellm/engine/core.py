"""EngineCore: requests in, events out, one step at a time. Owns scheduler, runner and the text of every answer.

Used from one thread; does no I/O. The worker feeds it and sends what it emits.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

from edgellm.contracts.engine import Row, SampleSpec, Tokenizer, TokenRunner
from edgellm.contracts.events import (
    ChoiceDone,
    Event,
    Failed,
    Finished,
    FinishReason,
    Progress,
    ReasoningDelta,
    Slid,
    Started,
    TextDelta,
    Timings,
    Usage,
)
from edgellm.contracts.request import GenerateRequest
from edgellm.engine.job import Job
from edgellm.engine.limits import Limits
from edgellm.engine.pacing import Emission
from edgellm.engine.prompt import EncodedPrompt
from edgellm.engine.scheduler import Broken, Drawn, Scheduler, Step
from edgellm.engine.spec import sample_spec
from edgellm.engine.text import Piece, ReplyText
from edgellm.errors import ContextExceeded, EdgeError, GenerationFailed, InvalidRequest, Overloaded

MEASURED_CHUNK = 256  # the prefill size by which waiting work is estimated


class _Answer:
    """A job and the text it has become."""

    __slots__ = ("accepted", "announced", "dropped", "job", "text")

    def __init__(self, job: Job, text: ReplyText, accepted: float, dropped: int) -> None:
        self.job = job
        self.text = text
        self.dropped = dropped  # tokens of the prompt that were left out
        self.accepted = accepted
        self.announced = False


class EngineCore:
    """One loaded model answering many requests."""

    def __init__(
        self,
        model: str,
        runner: TokenRunner,
        tokenizer: Tokenizer,
        *,
        limits: Limits | None = None,
    ) -> None:
        self._model = model
        self._runner = runner
        self._tokenizer = tokenizer
        self._limits = limits or Limits()
        self.scheduler = Scheduler(runner.info, runner, self._limits)
        self._answers: dict[str, _Answer] = {}
        self._end = tokenizer.end_of_generation
        self.steps = 0
        self.step_started = 0.0  # 0 between steps; read by the heartbeat thread
        self.step_predicted = 0.0
        self.step_seconds = 0.0  # of the latest

    @property
    def idle(self) -> bool:
        return self.scheduler.idle

    def warm_up(self) -> None:
        """Run decode steps before the model counts as ready: first steps allocate and page in."""
        token = self._tokenizer.bos or 0
        spec = SampleSpec(temperature=0.0, top_k=0, top_p=1.0, seed=0)
        for _ in range(2):  # the second run is the one worth remembering
            began = time.monotonic()
            self._runner.collect(self._runner.submit([Row(0, 0, (token,), spec)]))
            seconds = time.monotonic() - began
            self._runner.free(0)
        self.scheduler.costs.observe(1, seconds)

    # -- requests --------------------------------------------------------------------------------

    def add(self, request: GenerateRequest, prompt: EncodedPrompt | Sequence[int]) -> list[Emission]:
        """Accept a request whose prompt has been encoded, or is bare ids; or answer at once with why not."""
        if not isinstance(prompt, EncodedPrompt):
            prompt = EncodedPrompt(list(prompt))
        tokens = prompt.tokens
        try:
            self._check_queue(len(tokens))
            room = self._room(request, len(tokens))
            spec = sample_spec(request, self._runner.info, self._tokenizer, 0)
        except EdgeError as error:
            return [(request.id, Failed(error.info))]
        now = time.monotonic()
        job = Job(
            request.id,
            tokens,
            spec,
            room,
            priority=request.priority,
            arrived=now,
            key=request.cache_key,
        )
        self.scheduler.add(job)
        self._answers[request.id] = _Answer(job, prompt.reply(self._tokenizer, request.stop), now, prompt.dropped)
        return []

    def cancel(self, request_id: str) -> None:
        """Stop a request; nothing more is emitted for it. Unknown ids are ignored."""
        answer = self._answers.pop(request_id, None)
        if answer is not None:
            self.scheduler.remove(answer.job)

    def _check_queue(self, tokens: int) -> None:
        waiting = self.scheduler.waiting
        queued = sum(job.pending for job in waiting)
        if len(waiting) < self._limits.queue_requests and queued + tokens <= self._limits.queue_tokens:
            return
        rate = self.scheduler.costs.predict(MEASURED_CHUNK) / MEASURED_CHUNK
        if len(waiting) >= self._limits.queue_requests:
            told, setting = f"{len(waiting)} requests waiting, its limit", "queue_requests"
        else:
            told = f"{queued:,} tokens waiting; {tokens:,} more would exceed its limit of {self._limits.queue_tokens:,}"
            setting = "queue_tokens"
        raise Overloaded(
            f"{self._model} has {told}",
            hint=f"try again in a moment, or raise {setting}",
            retry_after=max(1.0, round(queued * rate, 1)),
        )

    def _room(self, request: GenerateRequest, prompt: int) -> int:
        """How many tokens may be generated."""
        if prompt == 0:
            raise InvalidRequest("the prompt is empty", param="prompt")
        context = self._runner.info.context
        if prompt >= context:
            raise ContextExceeded(
                f"the prompt has {prompt:,} tokens; {self._model} takes {context:,}",
                hint="shorten it, raise the context (--context) up to what the model was trained for, or pick another",
                param="messages",
            )
        room = context - prompt
        return room if request.max_tokens is None else min(request.max_tokens, room)

    # -- stepping --------------------------------------------------------------------------------

    def step(self) -> list[Emission]:
        """Schedule, run, and say what happened. Blocks for one step; returns at once when there is nothing to do."""
        step = self.scheduler.plan(time.monotonic())
        if step is None:
            return []
        emitted = self._announce(step)
        began = time.monotonic()
        self.steps += 1
        self.step_predicted, self.step_started = step.predicted_s, began
        results = self._runner.collect(self._runner.submit(step.rows))
        now = time.monotonic()
        self.step_started, self.step_seconds = 0.0, now - began
        for outcome in self.scheduler.commit(step, results, now, self.step_seconds):
            if isinstance(outcome, Drawn):
                emitted.extend(self._take(outcome))
            else:
                emitted.append(self._break(outcome))
        return emitted

    def _announce(self, step: Step) -> list[Emission]:
        """Started for those whose first step this is, progress for those in a long prefill."""
        emitted: list[Emission] = []
        for job, row in zip(step.jobs, step.rows, strict=True):
            answer = self._answers[job.id]
            if not answer.announced:
                answer.announced = True
                emitted.append((job.id, Started(job.prompt_length, job.cached, job.sample.seed)))
                if answer.dropped:
                    emitted.append((job.id, Slid(answer.dropped)))
            if row.sample is None:
                done = (row.start + len(row.tokens)) / job.prompt_length
                emitted.append((job.id, Progress("prefill", min(1.0, done))))
        return emitted

    def _take(self, drawn: Drawn) -> list[Emission]:
        """Turn a drawn token into text, or into the end of the answer."""
        job = drawn.job
        answer = self._answers[job.id]
        if drawn.token in self._end:
            return self._finish(answer, "stop")
        piece = answer.text.push(drawn.token)
        if piece.stopped:
            return self._finish(answer, "stop", piece)
        if job.generated >= job.max_tokens:
            return self._finish(answer, "length", piece)
        return [(job.id, delta) for delta in _deltas(piece)]

    def _finish(self, answer: _Answer, reason: FinishReason, *pieces: Piece) -> list[Emission]:
        job = answer.job
        del self._answers[job.id]
        self.scheduler.remove(job)
        usage = Usage(job.prompt_length, job.generated, job.cached)
        events = [delta for piece in (*pieces, answer.text.finish()) for delta in _deltas(piece)]
        events += [ChoiceDone(reason), Finished(usage, _timings(answer))]
        return [(job.id, event) for event in events]

    def _break(self, broken: Broken) -> Emission:
        job = broken.job
        del self._answers[job.id]
        self.scheduler.remove(job, keep=False)
        why = (
            "the model produced numbers that are not finite"
            if broken.reason == "nan"
            else "the engine has no KV room left for this request, even alone"
        )
        error = GenerationFailed(f"{self._model}: {why}", hint="try another prompt, or another variant of the model")
        return (job.id, Failed(error.info))

    def fail_all(self, error: EdgeError) -> list[Emission]:
        """Give up every request: the engine itself failed, and what it did to their sequences is unknown."""
        emitted: list[Emission] = [(request_id, Failed(error.info)) for request_id in self._answers]
        for answer in self._answers.values():
            self.scheduler.remove(answer.job, keep=False)
        self._answers.clear()
        self.step_started = 0.0  # the step that failed is over
        return emitted


def _deltas(piece: Piece) -> list[Event]:
    deltas: list[Event] = [ReasoningDelta(piece.reasoning)] if piece.reasoning else []
    return [*deltas, TextDelta(piece.text)] if piece.text else deltas


def _timings(answer: _Answer) -> Timings:
    job = answer.job
    start, first, last = job.first_step, job.first_token, job.last_token
    assert start is not None
    assert first is not None
    assert last is not None
    return Timings(
        queue_s=start - answer.accepted,
        prefill_s=first - start,
        decode_s=last - first,
        total_s=last - answer.accepted,
    )
