"""One request's answer in the making: its choices, each a job and the text it has become, and the events that tell."""

from __future__ import annotations

from edgellm.contracts.engine import Tokenizer
from edgellm.contracts.events import (
    Alternative,
    ChoiceDone,
    Event,
    Finished,
    FinishReason,
    ReasoningDelta,
    Slid,
    TextDelta,
    Timings,
    TokenInfo,
    Usage,
)
from edgellm.contracts.request import GenerateRequest
from edgellm.contracts.runner import Logprob
from edgellm.engine.job import Job
from edgellm.engine.step import Drawn
from edgellm.engine.text import Piece, ReplyText


class Choice:
    """A job, its text, and the log probabilities of tokens whose delta has not gone out yet."""

    def __init__(self, answer: Answer, job: Job, text: ReplyText) -> None:
        self.answer = answer
        self.job = job
        self.text = text
        self.taken = 0  # tokens; the job may have drawn a few more in the step that ended it
        self._logprob = 0.0  # sum over them
        self._infos: list[TokenInfo] = []

    @property
    def likelihood(self) -> float:
        """Mean log probability of its tokens."""
        return self._logprob / max(1, self.taken)

    def take(self, drawn: Drawn, tokenizer: Tokenizer) -> None:
        """Count a token, and remember its log probability."""
        self.taken += 1
        if drawn.logprob is not None:
            self._logprob += drawn.logprob.chosen
            if self.answer.request.logprobs is not None:
                self._infos.append(_info(drawn.token, drawn.logprob, tokenizer))

    def deltas(self, piece: Piece) -> list[Event]:
        """A piece of text as events; the tokens go with the last of them."""
        number = self.job.sample.choice
        if piece.reasoning and not piece.text:
            return [ReasoningDelta(piece.reasoning, number, self._said())]
        if not piece.text and not (self._infos and not piece.reasoning):
            return []
        events: list[Event] = [ReasoningDelta(piece.reasoning, number)] if piece.reasoning else []
        return [*events, TextDelta(piece.text, number, self._said())]

    def _said(self) -> tuple[TokenInfo, ...]:
        infos = tuple(self._infos)
        self._infos.clear()
        return infos


class Answer:
    """All choices of a request. With `best_of`, nothing is told before the best are known."""

    def __init__(self, request: GenerateRequest, accepted: float, *, keep: int = 0, dropped: int = 0) -> None:
        self.request = request
        self.keep = keep  # tokens at the beginning that stay when the context slides
        self.dropped = dropped  # tokens of the prompt that were left out
        self.accepted = accepted
        self.announced = False
        self.choices: list[Choice] = []
        self.open = 0  # choices that are not done
        self._held: dict[int, list[Event]] = {}

    @property
    def wanted(self) -> int:
        """Choices to generate."""
        return max(self.request.n, self.request.best_of)

    def add(self, choice: Choice) -> None:
        self.choices.append(choice)
        self.open += 1

    def tell(self, choice: Choice, events: list[Event]) -> list[Event]:
        """Events of a choice, now or with the best."""
        if self.wanted == self.request.n:
            return events
        self._held.setdefault(choice.job.sample.choice, []).extend(events)
        return []

    def finish(self, choice: Choice, events: list[Event], reason: FinishReason) -> list[Event]:
        """The last events of a choice; with the last choice, those of the whole answer."""
        self.open -= 1
        events = self.tell(choice, [*events, ChoiceDone(reason, choice.job.sample.choice)])
        if self.open:
            return events
        first = self.choices[0].job
        usage = Usage(first.prompt_length, sum(choice.taken for choice in self.choices), first.cached)
        return [*events, *self._best(), Finished(usage, self._timings())]

    def _best(self) -> list[Event]:
        """What was held back of the n likeliest choices, numbered anew."""
        if not self._held:
            return []
        ranked = sorted(self.choices, key=lambda choice: -choice.likelihood)[: self.request.n]
        return [
            renumbered(event, number)
            for number, choice in enumerate(ranked)
            for event in self._held[choice.job.sample.choice]
        ]

    def _timings(self) -> Timings:
        jobs = [choice.job for choice in self.choices]
        start = min(job.first_step for job in jobs if job.first_step is not None)
        first = min(job.first_token for job in jobs if job.first_token is not None)
        last = max(job.last_token for job in jobs if job.last_token is not None)
        return Timings(
            queue_s=start - self.accepted,
            prefill_s=first - start,
            decode_s=last - first,
            total_s=last - self.accepted,
            drafted=sum(job.drafted for job in jobs),
            accepted=sum(job.accepted for job in jobs),
        )


def renumbered(event: Event, choice: int) -> Event:
    """The same event of another choice."""
    match event:
        case TextDelta(text, _, tokens):
            return TextDelta(text, choice, tokens)
        case ReasoningDelta(text, _, tokens):
            return ReasoningDelta(text, choice, tokens)
        case Slid(dropped):
            return Slid(dropped, choice)
        case ChoiceDone(reason):
            return ChoiceDone(reason, choice)
        case _:
            return event


def _info(token: int, logprob: Logprob, tokenizer: Tokenizer) -> TokenInfo:
    top = tuple(Alternative(other, _raw(other, tokenizer), value) for other, value in logprob.top)
    return TokenInfo(token, _raw(token, tokenizer), logprob.chosen, top)


def _raw(token: int, tokenizer: Tokenizer) -> bytes:
    return tokenizer.token_bytes(token) or tokenizer.token_text(token).encode()
