"""The worker process of a model that makes embeddings. `python -m edgellm.engine.embedding_worker`

Its threads and its end are those of the other worker; what it loads and runs is not.
"""

from __future__ import annotations

import time
from pathlib import Path

from edgellm.contracts.embedding import EmbedderInfo, EmbeddingPlugin, EmbedRequest
from edgellm.contracts.engine import Tokenizer, title_of
from edgellm.contracts.events import Failed
from edgellm.contracts.runner import RunnerInfo
from edgellm.engine.embedding import EmbeddingCore
from edgellm.engine.protocol import Cancel, Embed, Emitted, Heartbeat, Load, Ready, Shutdown
from edgellm.engine.worker import Pipe, Worker, serve
from edgellm.errors import EdgeError, EngineUnavailable, GenerationFailed, InvalidRequest, WorkerDied


class Tokenised:
    """A request whose texts are token ids, or why they could not be."""

    def __init__(self, request: EmbedRequest, texts: list[list[int]] | EdgeError) -> None:
        self.request = request
        self.texts = texts


class EmbeddingWorker(Worker):
    """Everything after the pipes are open."""

    def __init__(self, pipe: Pipe) -> None:
        super().__init__(pipe)
        self._embedding: EmbeddingCore | None = None
        self._info: EmbedderInfo | None = None
        self._tokenizer: Tokenizer | None = None

    def _load(self, load: Load) -> None:
        from edgellm import plugins
        from edgellm.formats.gguf import read_model

        began = time.monotonic()
        self._model = load.model
        plugin = plugins.engine(load.engine)
        if not isinstance(plugin, EmbeddingPlugin):
            raise EngineUnavailable(f"{title_of(plugin)} makes no embeddings")
        model = read_model(Path(load.path))
        runner = plugin.load_embedder(model, load.placement, self._report_loading)
        self._tokenizer = plugin.tokenizer(model)
        self._info = info = runner.info
        core = EmbeddingCore(load.model, runner, limits=load.limits)
        core.warm_up()
        self._embedding = core
        told = RunnerInfo(info.engine, info.context, info.batch_tokens, info.batch_texts, info.batch_tokens)
        self._pipe.send(Ready(told, time.monotonic() - began))

    def _loop(self) -> None:
        core = self._embedding
        assert core is not None
        while self._take(core):
            try:
                emitted = core.step()
            except EdgeError as error:
                emitted = core.fail_all(error)
            except Exception as error:
                self._pipe.send(Emitted(core.fail_all(WorkerDied(f"the engine failed ({type(error).__name__})"))))
                raise
            if emitted:
                self._pipe.send(Emitted(emitted))

    def _take(self, core: EmbeddingCore) -> bool:
        """Take every message that has arrived; False on Shutdown."""
        for message in self._messages(wait=core.idle):
            match message:
                case Embed(request):
                    self._preparing.add(request.id)
                    self._prompts.submit(self._tokenise, request)
                case Tokenised():
                    self._begin(core, message)
                case Cancel(request_id):
                    self._preparing.discard(request_id)
                    core.cancel(request_id)
                case Shutdown():
                    return False
                case _:
                    pass
        return True

    def _tokenise(self, request: EmbedRequest) -> None:
        """On the prompt thread."""
        texts: list[list[int]] | EdgeError
        try:
            texts = [self._ids(index, text) for index, text in enumerate(request.inputs)]
        except EdgeError as error:
            texts = error
        except Exception as error:
            texts = GenerationFailed(f"the input could not be prepared ({type(error).__name__})")
        self._inbox.put(Tokenised(request, texts))

    def _ids(self, index: int, text: str | tuple[int, ...]) -> list[int]:
        assert self._tokenizer is not None
        assert self._info is not None
        if isinstance(text, str):
            return [*self._info.before, *self._tokenizer.encode(text, special=False), *self._info.after]
        size = self._tokenizer.vocabulary_size
        if not text or not all(0 <= token < size for token in text):
            raise InvalidRequest(
                f"input {index} holds a token that is not one of the {size:,} of {self._model}",
                hint="send text, and it is tokenised here",
                param=f"input[{index}]",
            )
        return list(text)

    def _begin(self, core: EmbeddingCore, tokenised: Tokenised) -> None:
        request, texts = tokenised.request, tokenised.texts
        if request.id not in self._preparing:
            return  # cancelled meanwhile
        self._preparing.discard(request.id)
        if isinstance(texts, EdgeError):
            self._pipe.send(Emitted([(request.id, Failed(texts.info))]))
        else:
            self._pipe.send(Emitted(core.add(request, texts)))

    def _pulse(self) -> Heartbeat:
        core = self._embedding
        if core is None:
            return Heartbeat(0, 0.0, 0.0, 0, 0, 0)
        started = core.step_started
        age = time.monotonic() - started if started else 0.0
        return Heartbeat(core.steps, age, 0.0, core.running, core.waiting + len(self._preparing), 0)


if __name__ == "__main__":
    serve(EmbeddingWorker)
