"""The worker process of a model that makes embeddings. `python -m edgellm.engine.embedding_worker`

Its threads and its end are those of every worker (`worker_base.py`); what it loads and runs is not.
"""

from __future__ import annotations

import time
from pathlib import Path

from edgellm.contracts.embedding import EmbedderInfo, EmbeddingPlugin, EmbedRequest
from edgellm.contracts.engine import Tokenizer, title_of
from edgellm.contracts.runner import RunnerInfo
from edgellm.engine.embedding import EmbeddingCore, too_long
from edgellm.engine.prompt import LONG
from edgellm.engine.protocol import Heartbeat, Load
from edgellm.engine.worker_base import Pipe, Worker, serve
from edgellm.errors import EngineUnavailable, InvalidRequest


class EmbeddingWorker(Worker[EmbeddingCore]):
    asked = "input"

    def __init__(self, pipe: Pipe) -> None:
        super().__init__(pipe)
        self._info: EmbedderInfo | None = None
        self._tokenizer: Tokenizer | None = None

    def _load(self, load: Load) -> tuple[EmbeddingCore, RunnerInfo]:
        from edgellm import plugins
        from edgellm.formats.gguf import read_model

        plugin = plugins.engine(load.engine)
        if not isinstance(plugin, EmbeddingPlugin):
            raise EngineUnavailable(f"{title_of(plugin)} makes no embeddings")
        model = read_model(Path(load.path))
        runner = plugin.load_embedder(model, load.placement, self._report_loading)
        self._tokenizer = plugin.tokenizer(model)
        self._info = info = runner.info
        core = EmbeddingCore(load.model, runner, limits=load.limits)
        core.warm_up()
        return core, RunnerInfo(info.engine, info.context, info.batch_tokens, info.batch_texts, info.batch_tokens)

    def _encode(self, request: EmbedRequest) -> list[list[int]]:
        alone = len(request.inputs) == 1
        return [self._ids(None if alone else index, text) for index, text in enumerate(request.inputs)]

    def _ids(self, index: int | None, text: str | tuple[int, ...]) -> list[int]:
        """`index` of the text among several."""
        assert self._tokenizer is not None
        assert self._info is not None
        if isinstance(text, str):
            context = self._info.context
            if len(text) > LONG and (fewest := self._tokenizer.fewest(text)) > context:
                raise too_long(f"at least {fewest:,}", self._model, context, index)
            return [*self._info.before, *self._tokenizer.encode(text, special=False), *self._info.after]
        size = self._tokenizer.vocabulary_size
        if not text or not all(0 <= token < size for token in text):
            raise InvalidRequest(
                f"input {index or 0} holds a token that is not one of the {size:,} of {self._model}",
                hint="send text, and it is tokenised here",
                param=f"input[{index or 0}]",
            )
        return list(text)

    def _begin(self, core: EmbeddingCore, request: EmbedRequest, content: list[list[int]]) -> None:
        self._emit(core, core.add(request, content))

    def _beat_of(self, core: EmbeddingCore) -> Heartbeat:
        age = self._step_age.at(core.step_started, time.monotonic())
        return Heartbeat(core.steps, age, core.step_predicted, core.running, core.waiting + len(self._preparing), 0)


if __name__ == "__main__":
    serve(EmbeddingWorker)
