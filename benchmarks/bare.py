"""What the hardware and llama.cpp allow: llama_decode in a loop, with no server, scheduler or text around it.

usage: bare.py MODEL.gguf THREADS [single|batch8|shared ...]

Prints one JSON object: for each, the better of flash attention on and off.
"""

from __future__ import annotations

import ctypes
import json
import sys
import time
from typing import Any

import llama_cpp as api
import numpy as np
from edgellm_llamacpp.amx import has_amx, sound

BATCH = 512


class Bare:
    """A model, a context and a batch."""

    def __init__(self, path: str, threads: int, flash: bool, sequences: int) -> None:
        model_params = api.llama_model_default_params()
        model_params.use_extra_bufts = not has_amx(api) or sound(api)  # as the engine does: a broken build would crash
        self.model = api.llama_model_load_from_file(path.encode(), model_params)
        params = api.llama_context_default_params()
        params.n_ctx, params.n_batch, params.n_ubatch = 16384, BATCH, BATCH
        params.n_seq_max = params.n_outputs_max = sequences
        params.n_threads = params.n_threads_batch = threads
        params.kv_unified, params.swa_full = True, False
        kinds = (api.LLAMA_FLASH_ATTN_TYPE_DISABLED, api.LLAMA_FLASH_ATTN_TYPE_ENABLED)
        params.flash_attn_type = kinds[flash]
        self.context = api.llama_init_from_model(self.model, params)
        self.vocabulary = api.llama_vocab_n_tokens(api.llama_model_get_vocab(self.model))
        self.batch = api.llama_batch_init(BATCH, 0, 1)

    def step(self, rows: list[tuple[int, int, int, bool]]) -> list[int]:
        """Decode rows of (token, position, sequence, wanted); the greedy tokens of the wanted ones."""
        for i, (token, position, sequence, wanted) in enumerate(rows):
            self.batch.token[i], self.batch.pos[i] = token, position
            self.batch.n_seq_id[i], self.batch.seq_id[i][0] = 1, sequence
            self.batch.logits[i] = wanted
        self.batch.n_tokens = len(rows)
        if api.llama_decode(self.context, self.batch) != 0:
            raise RuntimeError("llama_decode failed")
        return [self._argmax(i) for i, row in enumerate(rows) if row[3]]

    def _argmax(self, index: int) -> int:
        pointer = ctypes.cast(api.llama_get_logits_ith(self.context, index), ctypes.POINTER(ctypes.c_float))
        return int(np.ctypeslib.as_array(pointer, (self.vocabulary,)).argmax())

    def prefill(self, tokens: list[int], sequence: int, start: int = 0) -> int:
        first = 0
        for at in range(0, len(tokens), BATCH):
            part = tokens[at : at + BATCH]
            last = at + len(part) == len(tokens)
            rows = [(t, start + at + i, sequence, last and i == len(part) - 1) for i, t in enumerate(part)]
            first = (self.step(rows) or [0])[0]
        return first

    def share(self, source: int, target: int) -> None:
        api.llama_memory_seq_cp(api.llama_get_memory(self.context), source, target, -1, -1)

    def close(self) -> None:
        api.llama_free(self.context)
        api.llama_model_free(self.model)


def decode(bare: Bare, newest: list[int], lengths: list[int], count: int) -> float:
    """Seconds for `count` tokens of each sequence."""
    began = time.perf_counter()
    for step in range(count):
        newest = bare.step([(t, lengths[s] + step, s, True) for s, t in enumerate(newest)])
    return time.perf_counter() - began


def single(bare: Bare) -> float:
    """Decode tok/s after a prompt of 80 tokens."""
    newest = bare.prefill([100 + i for i in range(80)], 0)
    return 127 / decode(bare, [newest], [80], 127)


def batch8(bare: Bare) -> float:
    """Output tok/s of eight prompts of 170 tokens and 64 tokens each, prefill included."""
    began = time.perf_counter()
    newest = [bare.prefill([1000 + 200 * s + i for i in range(170)], s) for s in range(8)]
    decode(bare, newest, [170] * 8, 63)
    return 8 * 64 / (time.perf_counter() - began)


def shared(bare: Bare) -> float:
    """Wall seconds: one system prompt of 930 tokens computed once, eight questions of 30, 24 tokens each."""
    began = time.perf_counter()
    bare.prefill([2000 + i for i in range(930)], 0)
    for sequence in range(1, 8):
        bare.share(0, sequence)
    newest = [bare.prefill([5000 + 40 * s + i for i in range(30)], s, 930) for s in range(8)]
    decode(bare, newest, [960] * 8, 23)
    return time.perf_counter() - began


def main() -> None:
    path, threads, *names = sys.argv[1:]
    callback = api.llama_log_callback(lambda *_: None)
    api.llama_log_set(callback, None)
    workloads: dict[str, Any] = {"single": single, "batch8": batch8, "shared": shared}
    out = {}
    for name in names or list(workloads):
        figures = {}
        for flash in (False, True):
            bare = Bare(path, int(threads), flash, 8)
            bare.step([(1, 0, 0, True)])
            api.llama_memory_clear(api.llama_get_memory(bare.context), True)
            figures["flash attention on" if flash else "flash attention off"] = workloads[name](bare)
            bare.close()
        best = (min if name == "shared" else max)(figures, key=lambda flag: figures[flag])
        out[name] = {"value": figures[best], "flags": best}
    print(json.dumps(out))


if __name__ == "__main__":
    main()
