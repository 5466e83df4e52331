"""The worker process of a model that writes: chat template and tokens, then the scheduler's loop.

`python -m edgellm.engine.worker`. Beside the threads of every worker (`worker_base.py`) there is a second one that
prepares prompts: those so long that others should not wait for them.
"""

from __future__ import annotations

import math
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from msgspec.structs import replace

from edgellm.contracts.engine import EnginePlugin, Tokenizer
from edgellm.contracts.request import GenerateRequest, Messages, Prompt, Text, Tokens
from edgellm.contracts.runner import RunnerInfo, TokenRunner
from edgellm.engine.breakers import breaker_tokens
from edgellm.engine.core import EngineCore
from edgellm.engine.pacing import Emission, Pacer
from edgellm.engine.prompt import EncodedPrompt, PromptEncoder
from edgellm.engine.protocol import Emitted, Heartbeat, Load
from edgellm.engine.worker_base import Pipe, Worker, serve

LONG_PROMPT = 200_000  # characters; a tenth of a second, and far more for text that is no language


class TextWorker(Worker[EngineCore]):
    asked = "prompt"

    def __init__(self, pipe: Pipe) -> None:
        super().__init__(pipe)
        self._encoder: PromptEncoder | None = None
        self._tokenizer: Tokenizer | None = None
        self._long_prompts = ThreadPoolExecutor(1, thread_name_prefix="long prompt")
        self._context = 0  # tokens
        self._pacer = Pacer()

    # -- loading ---------------------------------------------------------------------------------

    def _load(self, load: Load) -> tuple[EngineCore, RunnerInfo]:
        from edgellm import plugins
        from edgellm.formats.gguf import read_model
        from edgellm.placement.plan import trained_context

        plugin = plugins.engine(load.engine)
        model = read_model(Path(load.path))
        reading = self._prompts.submit(plugin.tokenizer, model)  # beside the weights, not after them
        runner = plugin.load(model, load.placement, self._report_loading)
        tokenizer = reading.result()
        core = self._start(load, runner, tokenizer, trained_context(model))
        if load.draft:
            _load_draft(load, plugin, core, tokenizer)
        return core, runner.info

    def _start(self, load: Load, runner: TokenRunner, tokenizer: Tokenizer, trained: int | None) -> EngineCore:
        core = EngineCore(load.model, runner, tokenizer, limits=load.limits, trained=trained)
        core.warm_up()
        self._context = runner.info.context
        self._tokenizer = tokenizer
        self._encoder = PromptEncoder(tokenizer, core.context)
        self._prompts.submit(self._encoder.prepare)  # compiles the chat template before the first chat asks for it
        return core

    # -- serving ---------------------------------------------------------------------------------

    def _threads(self, request: GenerateRequest) -> ThreadPoolExecutor:
        return self._long_prompts if characters(request.prompt) > LONG_PROMPT else self._prompts

    def _encode(self, request: GenerateRequest) -> EncodedPrompt:
        assert self._encoder is not None
        assert self._tokenizer is not None
        prompt = self._encoder.encode(request.prompt, self._fit(request))
        breaker_tokens(request.sampling, self._tokenizer)  # found here, so that no step waits for the search
        return prompt

    def _fit(self, request: GenerateRequest) -> int | None:
        """How long the prompt may be where it may be cut: the answer is to have room, half of the context at most."""
        if not request.sliding:
            return None
        room = request.max_tokens or self._context // 8
        return self._context - min(room, self._context // 2)

    def _begin(self, core: EngineCore, request: GenerateRequest, content: EncodedPrompt) -> None:
        # With a prompt steps become long: text that is held back for a moment would wait for the end of one.
        self._pace(core.add(request, content), math.inf)

    def _emit(self, core: EngineCore, events: list[Emission]) -> None:
        self._pace(events, core.pipeline.step_seconds)

    def _pace(self, events: list[Emission], next_s: float) -> None:
        """Send, or hold text back for a moment. The next step is expected to take `next_s` seconds."""
        if ready := self._pacer.add(events, time.monotonic(), next_s):
            self._pipe.send(Emitted(ready))

    def _cancel(self, core: EngineCore, request_id: str) -> None:
        super()._cancel(core, request_id)
        self._pacer.forget(request_id)

    def _beat_of(self, core: EngineCore) -> Heartbeat:
        scheduler, steps = core.scheduler, core.pipeline
        return Heartbeat(
            step=steps.steps,
            step_age_s=self._step_age.at(steps.step_started, time.monotonic()),
            step_predicted_s=steps.step_predicted,
            running=len(scheduler.active),
            waiting=len(scheduler.waiting) + len(self._preparing),
            kv_used=scheduler.cache.used,
            suspended=scheduler.suspended,
        )


def _load_draft(load: Load, plugin: EnginePlugin, core: EngineCore, tokenizer: Tokenizer) -> None:
    from edgellm.engine.draft_model import DraftModel, check_vocabulary
    from edgellm.formats.gguf import read_model

    model = read_model(Path(load.draft))
    check_vocabulary(load.model, tokenizer, plugin.tokenizer(model))
    # Its rounding cannot reach the text; and the process is the other model's, too, so it cannot measure its part.
    placement = replace(load.placement, exact=False, memory=0)
    core.scheduler.speculator.model = DraftModel(plugin.load(model, placement, lambda _done: None))


def characters(prompt: Prompt) -> int:
    """How much there is to tokenise."""
    match prompt:
        case Messages(messages):
            return sum(len(message.content) for message in messages)
        case Text(text):
            return len(text)
        case Tokens():
            return 0


if __name__ == "__main__":
    serve(TextWorker)
