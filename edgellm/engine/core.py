"""EngineCore: requests in, events out, step by step. Owns scheduler, runner and the text of every answer.

Used from one thread; does no I/O. The worker feeds it and sends what it emits.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

from edgellm.contracts.engine import Tokenizer
from edgellm.contracts.events import Event, Failed, FinishReason, Progress, Slid, Started
from edgellm.contracts.request import GenerateRequest
from edgellm.contracts.runner import TokenRunner
from edgellm.engine.answers import Answer, Choice
from edgellm.engine.context import Context
from edgellm.engine.job import Job
from edgellm.engine.limits import Limits
from edgellm.engine.pacing import Emission
from edgellm.engine.pipeline import Pipeline
from edgellm.engine.prompt import EncodedPrompt
from edgellm.engine.scheduler import Scheduler
from edgellm.engine.spec import sample_spec
from edgellm.engine.step import Broken, Drawn, Step
from edgellm.engine.text import Piece
from edgellm.engine.warmup import warm_up
from edgellm.errors import EdgeError, GenerationFailed, InvalidRequest, Overloaded

SLIDING_CONTEXTS = 4  # longest answer, in contexts, where old tokens may slide out and nothing else limits it
MEASURED_CHUNK = 256  # the prefill size by which waiting work is estimated
TOLD_S = 1.0  # between two words to those who wait


class EngineCore:
    """One loaded model answering many requests. `trained`: for contexts up to so many tokens, if known."""

    def __init__(
        self,
        model: str,
        runner: TokenRunner,
        tokenizer: Tokenizer,
        *,
        limits: Limits | None = None,
        trained: int | None = None,
    ) -> None:
        self._model = model
        self._runner = runner
        self.context = Context(model, runner.info.context, trained)
        self._tokenizer = tokenizer
        self._limits = limits or Limits()
        self.scheduler = Scheduler(runner.info, runner, self._limits)
        self._answers: dict[str, Answer] = {}
        self._choices: dict[Job, Choice] = {}
        self._end = tokenizer.end_of_generation
        self.pipeline = Pipeline(runner)
        self._told = time.monotonic()

    @property
    def idle(self) -> bool:
        return self.scheduler.idle

    def warm_up(self) -> None:
        """Run steps before the model counts as ready: first steps allocate and page in, and their time is learned."""
        warm_up(self._runner, self._tokenizer.bos or 0, self.scheduler)

    # -- requests --------------------------------------------------------------------------------

    def add(self, request: GenerateRequest, prompt: EncodedPrompt | Sequence[int]) -> list[Emission]:
        """Accept a request whose prompt has been encoded, or is bare ids; or answer at once with why not."""
        if not isinstance(prompt, EncodedPrompt):
            prompt = EncodedPrompt(list(prompt))
        now = time.monotonic()
        answer = Answer(request, now, keep=prompt.keep, dropped=prompt.dropped)
        try:
            room = self._room(request, len(prompt.tokens))  # first: what can never be must not be tried again
            self._check_queue(len(prompt.tokens))
            specs = [sample_spec(request, self._runner.info, self._tokenizer, n) for n in range(answer.wanted)]
        except EdgeError as error:
            return [(request.id, Failed(error.info))]
        for spec in specs:  # the first computes the prompt, the others wait for it and fork
            job = Job(
                f"{request.id}/{spec.choice}",
                prompt.tokens,
                spec,
                room,
                priority=request.priority,
                arrived=now,
                key=request.cache_key,
                drafts=request.drafts,
            )
            choice = Choice(answer, job, prompt.reply(self._tokenizer, request.stop))
            answer.add(choice)
            self._choices[job] = choice
            self.scheduler.add(job)
        self._answers[request.id] = answer
        return []

    def cancel(self, request_id: str) -> None:
        """Stop a request; nothing more is emitted for it. Unknown ids are ignored."""
        answer = self._answers.get(request_id)
        if answer is not None:
            self._forget(answer)

    def _forget(self, answer: Answer, *, keep: bool = True) -> None:
        """Take every job of an answer out that is still in the scheduler."""
        del self._answers[answer.request.id]
        for choice in answer.choices:
            if self._choices.pop(choice.job, None) is not None:
                self.scheduler.remove(choice.job, keep=keep)

    def _check_queue(self, tokens: int) -> None:
        waiting = self.scheduler.waiting
        queued = sum(job.pending for job in waiting)
        few = queued == 0 or queued + tokens <= self._limits.queue_tokens  # alone it would be refused for ever
        if len(waiting) < self._limits.queue_requests and few:
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
        context = self.context.tokens
        if prompt >= context:
            raise self.context.exceeded(prompt)
        room = SLIDING_CONTEXTS * context if request.sliding else context - prompt
        return room if request.max_tokens is None else min(request.max_tokens, room)

    # -- stepping --------------------------------------------------------------------------------

    def step(self) -> list[Emission]:
        """Schedule, run, and say what happened. Blocks for one step; returns at once when there is nothing to do.

        Where the engine takes a second step meanwhile, the next is planned and on its way before this one ends.
        """
        emitted: list[Emission] = []
        if self.pipeline.empty:
            step = self.scheduler.plan(time.monotonic())
            if step is None:
                return []
            emitted = self._announce(step)
            self.pipeline.submit(step)
        if (ahead := self.scheduler.plan_ahead()) is not None:
            self.pipeline.submit(ahead)
        done = self.pipeline.collect()
        for outcome in self.scheduler.commit(done.step, done.results, done.now, done.seconds):
            choice = self._choices.get(outcome.job)
            if choice is None:
                continue  # ended before: drafts or the next step ran on, or another choice of its request broke
            events = self._take(choice, outcome) if isinstance(outcome, Drawn) else self._break(choice, outcome)
            emitted.extend((choice.answer.request.id, event) for event in events)
        return emitted + self._tell_waiting(done.now)

    def _tell_waiting(self, now: float) -> list[Emission]:
        """Now and then, to each that has not begun: how many came before it and are not done."""
        if now - self._told < TOLD_S:
            return []
        self._told = now
        return [
            (name, Progress("queue", 0.0, float(ahead)))
            for ahead, (name, answer) in enumerate(self._answers.items())
            if ahead and not answer.announced
        ]

    def _announce(self, step: Step) -> list[Emission]:
        """Started for those whose first step this is, progress for those in a long prefill."""
        emitted: list[Emission] = []
        for job, row in zip(step.jobs, step.rows, strict=True):
            answer = self._choices[job].answer
            name = answer.request.id
            if not answer.announced:
                answer.announced = True
                emitted.append((name, Started(job.prompt_length, job.cached, job.sample.seed)))
                if answer.dropped:
                    emitted.append((name, Slid(answer.dropped)))
            if row.sample is None and job is answer.choices[0].job:
                done = (row.start + len(row.tokens)) / job.prompt_length
                emitted.append((name, Progress("prefill", min(1.0, done))))
        return emitted

    def _take(self, choice: Choice, drawn: Drawn) -> list[Event]:
        """Turn a drawn token into text, or into the end of the choice."""
        choice.take(drawn, self._tokenizer)
        if drawn.token in self._end:
            return self._finish(choice, "stop")
        piece = choice.text.push(drawn.token)
        if piece.stopped:
            return self._finish(choice, "stop", piece)
        if choice.taken >= choice.job.max_tokens:
            return self._finish(choice, "length", piece)
        return choice.answer.tell(choice, [*choice.deltas(piece), *self._slide(choice)])

    def _slide(self, choice: Choice) -> list[Event]:
        """Where the context is full and the request allows it, the oldest tokens are forgotten."""
        job, answer = choice.job, choice.answer
        if not answer.request.sliding or len(job.tokens) < self._runner.info.context:
            return []
        return [Slid(self.scheduler.slide(job, answer.keep), job.sample.choice)]

    def _finish(self, choice: Choice, reason: FinishReason, *pieces: Piece) -> list[Event]:
        del self._choices[choice.job]
        self.scheduler.remove(choice.job)
        last = [delta for piece in (*pieces, choice.text.finish()) for delta in choice.deltas(piece)]
        events = choice.answer.finish(choice, last, reason)
        if not choice.answer.open:
            del self._answers[choice.answer.request.id]
        return events

    def _break(self, choice: Choice, broken: Broken) -> list[Event]:
        """One choice that cannot go on fails the request."""
        del self._choices[choice.job]
        self.scheduler.remove(choice.job, keep=False)
        self._forget(choice.answer)
        why = (
            "the model produced numbers that are not finite"
            if broken.reason == "nan"
            else "the engine has no KV room left for this request, even alone"
        )
        error = GenerationFailed(f"{self._model}: {why}", hint="try another prompt, or another variant of the model")
        return [Failed(error.info)]

    def fail_all(self, error: EdgeError) -> list[Emission]:
        """Give up every request: the engine itself failed, and what it did to their sequences is unknown."""
        emitted: list[Emission] = [(request_id, Failed(error.info)) for request_id in self._answers]
        self.pipeline.drain()
        self.scheduler.abandon()
        for answer in list(self._answers.values()):
            self._forget(answer, keep=False)
        return emitted
