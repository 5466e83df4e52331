"""EmbeddingRunner over one llama.cpp context: whole texts in, one pooled vector for each out; nothing is kept."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from edgellm.contracts.embedding import FOR_EMBEDDINGS, NOT_POOLED, EmbedderInfo
from edgellm.contracts.engine import Placement
from edgellm.contracts.runner import Row
from edgellm.errors import GenerationFailed, LoadFailed
from edgellm_llamacpp.batch import Batch
from edgellm_llamacpp.native import Context, Library, Model


class LlamaCppEmbedder:
    """One loaded model. Not thread-safe: one thread calls it."""

    def __init__(self, lib: Library, model: Model, context: Context, placement: Placement) -> None:
        """Raises LoadFailed for a model whose file does not say how its tokens' vectors become one."""
        api = self._api = lib.api
        pooling = api.llama_pooling_type(context.pointer)
        if pooling not in (api.LLAMA_POOLING_TYPE_MEAN, api.LLAMA_POOLING_TYPE_CLS, api.LLAMA_POOLING_TYPE_LAST):
            raise LoadFailed(NOT_POOLED, hint=FOR_EMBEDDINGS)
        self._log, self._context = lib.log, context
        # Encoders keep no memory of a text; decoders do, and it is emptied after each call.
        self._run = api.llama_decode if context.memory else api.llama_encode
        self._vocabulary = int(api.llama_vocab_n_tokens(model.vocabulary))
        self._batch = Batch(api, placement.batch_tokens)
        before, after = _frame(lib, model)
        self._info = EmbedderInfo(
            engine="llamacpp",
            context=placement.context,
            dimensions=int(api.llama_model_n_embd_out(model.pointer)),
            batch_tokens=placement.batch_tokens,
            batch_texts=placement.max_sequences,
            before=before,
            after=after,
        )

    @property
    def info(self) -> EmbedderInfo:
        return self._info

    def embed(self, texts: Sequence[Sequence[int]]) -> npt.NDArray[np.float32]:
        """Raises ValueError on what llama.cpp would abort on, GenerationFailed when it fails."""
        self._check(texts)
        self._batch.fill([Row(index, 0, text) for index, text in enumerate(texts)], self._vocabulary)
        self._batch.ask_all()
        try:
            code = self._run(self._context.pointer, self._batch.struct)
            if code:
                raise GenerationFailed(f"llama.cpp could not embed (code {code}): {self._log.problem() or 'no reason'}")
            return np.stack([self._vector(index) for index in range(len(texts))])
        finally:
            if self._context.memory:
                self._api.llama_memory_clear(self._context.memory, False)

    def close(self) -> None:
        """Free the context, and the model once its tokenizer is gone too."""
        self._context.close()

    def _vector(self, index: int) -> npt.NDArray[np.float32]:
        pointer = self._api.llama_get_embeddings_seq(self._context.pointer, index)
        if not pointer:
            raise GenerationFailed("llama.cpp returned no vector", hint=self._log.problem())
        return np.array(np.ctypeslib.as_array(pointer, (self._info.dimensions,)), np.float32)

    def _check(self, texts: Sequence[Sequence[int]]) -> None:
        lengths = [len(text) for text in texts]
        if not 0 < len(lengths) <= self._info.batch_texts:
            raise ValueError(f"a call takes 1 to {self._info.batch_texts} texts, not {len(lengths)}")
        if not 0 < min(lengths) <= max(lengths) <= self._info.context:
            raise ValueError(f"a text has 1 to {self._info.context} tokens")
        if sum(lengths) > self._info.batch_tokens:
            raise ValueError(f"{sum(lengths)} tokens exceed the {self._info.batch_tokens} of a call")


def _frame(lib: Library, model: Model) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The tokens that the file wants before and after every text."""
    api, vocabulary = lib.api, model.vocabulary
    if api.llama_vocab_type(vocabulary) == api.LLAMA_VOCAB_TYPE_WPM:
        return (int(api.llama_vocab_bos(vocabulary)),), (int(api.llama_vocab_sep(vocabulary)),)
    before = (int(api.llama_vocab_bos(vocabulary)),) if api.llama_vocab_get_add_bos(vocabulary) else ()
    after = (int(api.llama_vocab_eos(vocabulary)),) if api.llama_vocab_get_add_eos(vocabulary) else ()
    return before, after
