"""The core on a real engine, without processes: requests in, text out."""

from __future__ import annotations

from contract.engines import Engine

from edgellm.contracts.engine import Placement
from edgellm.contracts.events import Event, Failed, Finished, TextDelta
from edgellm.contracts.request import GenerateRequest, Message, Messages, Sampling, Text
from edgellm.contracts.runner import TokenRunner
from edgellm.engine.core import EngineCore
from edgellm.engine.limits import Limits
from edgellm.engine.prompt import PromptEncoder


class Answers:
    """A core on a real engine, and what it answered. Questions go through the chat template, where there is one."""

    def __init__(
        self, engine: Engine, where: Placement, tokens: int, limits: Limits | None = None, *, warm: bool = True
    ) -> None:
        self.tokens = tokens
        self.runner: TokenRunner = engine.load(where)
        self.core = EngineCore("m", self.runner, engine.tokenizer, limits=limits or Limits(drafts="auto"))
        self.encoder = PromptEncoder(engine.tokenizer)
        if warm:
            self.core.warm_up()
        self.chats = engine.tokenizer.chat_template is not None
        self.events: dict[str, list[Event]] = {}

    def let_guesses_pay(self) -> None:
        """Rows cost nothing, as far as the speculator knows: it guesses whenever it can, however long steps took."""
        self.core.scheduler.decode_costs.predict = lambda tokens, pairs=0.0: 1.0  # type: ignore[method-assign]

    def ask(
        self, name: str, text: str, sampling: Sampling, *, drafts: bool = True, priority: int = 0, n: int = 1
    ) -> None:
        prompt = Messages((Message("user", text),)) if self.chats else Text(text)
        request = GenerateRequest(
            id=name,
            model="m",
            prompt=prompt,
            sampling=sampling,
            max_tokens=self.tokens,
            drafts=drafts,
            priority=priority,
            n=n,
        )
        self.take(self.core.add(request, self.encoder.encode(prompt)))

    def take(self, emitted: list[tuple[str, Event]]) -> None:
        for name, event in emitted:
            assert not isinstance(event, Failed), event
            self.events.setdefault(name, []).append(event)

    def run(self) -> None:
        while not self.core.idle:
            self.take(self.core.step())

    def text(self, name: str, choice: int = 0) -> str:
        said = (event for event in self.events[name] if isinstance(event, TextDelta))
        return "".join(event.text for event in said if event.choice == choice)

    def end(self, name: str) -> Finished:
        end = self.events[name][-1]
        assert isinstance(end, Finished)
        return end
