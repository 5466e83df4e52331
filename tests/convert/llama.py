"""Runs a GGUF file in llama.cpp directly: logits at every position, embeddings, token ids."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from edgellm_llamacpp.native import Model, Vocabulary, library, open_vocabulary
from edgellm_llamacpp.tokenizer import LlamaCppTokenizer

from edgellm.contracts.engine import Tokenizer


def logits(path: Path, ids: Sequence[int], context: int) -> npt.NDArray[np.float32]:
    """Shape (tokens, vocabulary), computed in F32 with an F32 cache."""
    lib = library()
    api: Any = lib.api
    model, pointer = _opened(path, context, max(len(ids), 1))
    batch = api.llama_batch_init(len(ids), 0, 1)
    try:
        _fill(batch, ids)
        assert api.llama_decode(pointer, batch) == 0, lib.log.problem()
        size = api.llama_vocab_n_tokens(model.vocabulary)
        rows = [np.ctypeslib.as_array(api.llama_get_logits_ith(pointer, i), (size,)).copy() for i in range(len(ids))]
        return np.stack(rows)
    finally:
        api.llama_batch_free(batch)
        api.llama_free(pointer)


def embeddings(path: Path, texts: Sequence[Sequence[int]]) -> npt.NDArray[np.float32]:
    """Shape (texts, dimensions), pooled as the file says, each text alone, in F32 with an F32 cache."""
    lib = library()
    api: Any = lib.api
    longest = max(map(len, texts))
    model, pointer = _opened(path, longest, longest, embeds=True)
    memory = api.llama_get_memory(pointer)
    run = api.llama_decode if memory else api.llama_encode
    size = int(api.llama_model_n_embd_out(model.pointer))
    found = []
    batch = api.llama_batch_init(longest, 0, 1)
    try:
        for ids in texts:
            _fill(batch, ids)
            assert run(pointer, batch) == 0, lib.log.problem()
            found.append(np.ctypeslib.as_array(api.llama_get_embeddings_seq(pointer, 0), (size,)).copy())
            if memory:
                api.llama_memory_clear(memory, False)
        return np.stack(found)
    finally:
        api.llama_batch_free(batch)
        api.llama_free(pointer)


def _opened(path: Path, context: int, batch: int, *, embeds: bool = False) -> tuple[Model, Any]:
    """The model, and a context of one sequence, which the caller frees."""
    lib = library()
    api: Any = lib.api
    params = api.llama_model_default_params()
    params.n_gpu_layers = 0
    pointer = api.llama_model_load_from_file(str(path).encode(), params)
    assert pointer, lib.log.problem()
    model = Model(lib, pointer)
    params = api.llama_context_default_params()
    params.n_ctx = context
    params.n_batch = params.n_ubatch = params.n_outputs_max = params.n_outputs_max_per_seq = batch
    params.n_threads = params.n_threads_batch = params.n_seq_max = 1
    params.flash_attn_type = api.LLAMA_FLASH_ATTN_TYPE_DISABLED
    params.type_k = params.type_v = api.GGML_TYPE_F32
    params.embeddings = embeds
    pointer = api.llama_init_from_model(model.pointer, params)
    assert pointer, lib.log.problem()
    return model, pointer


def _fill(batch: Any, ids: Sequence[int]) -> None:
    """All tokens of one text, of each of which something is wanted."""
    batch.n_tokens = len(ids)
    for index, token in enumerate(ids):
        batch.token[index], batch.pos[index] = token, index
        batch.n_seq_id[index], batch.logits[index] = 1, 1
        batch.seq_id[index][0] = 0


def tokenizer(path: Path) -> Tokenizer:
    """The engine's, of a file that may have no weights."""
    lib = library()
    return LlamaCppTokenizer(lib, Vocabulary(open_vocabulary(lib, path)), path)
