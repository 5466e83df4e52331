"""Runs tiny models, in a process of its own, to learn what nothing else tells about a build of llama.cpp.

python -m edgellm_llamacpp.canary amx             ends with 0; with a signal where the build's AMX code is broken
python -m edgellm_llamacpp.canary exact TYPE      prints up to how many tokens of KV in use the rows of a step come
                                                  out the same to the last bit, however many are computed at once:
                                                  JSON, with weights `plain` and `repacked`; and whether that
                                                  goes on where llama.cpp's own attention begins to go in `tiles`
"""

from __future__ import annotations

import ctypes
import json
import os
import struct
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from edgellm.formats.gguf_types import TENSOR_TYPES
from edgellm_llamacpp.native import import_binding

_U32, _F32, _STRING = 4, 6, 8  # GGUF value types
_WIDTH = 256  # every dimension: a block of the K types, tiles of AMX rows
_THREADS = 2
_CONTEXT = 1024
_SHORT, _LONG = 40, 600  # tokens before: attention takes other ways from 512 cells on
_TILE = 63  # attention of 64 rows and more is done in tiles, which round otherwise, or by our own kernel
_ROWS = (2, 3, 5, 16, _TILE)
_TILED_ROWS = (64, 150)


def tiny_model(kind: str) -> bytes:
    """A llama of one layer without a vocabulary and with random weights of tensor type `kind`, as GGUF version 3."""
    keys = [
        _string("general.architecture", "llama"),
        _string("tokenizer.ggml.model", "none"),
        _number("llama.context_length", _CONTEXT),
        _number("llama.embedding_length", _WIDTH),
        _number("llama.block_count", 1),
        _number("llama.feed_forward_length", _WIDTH),
        _number("llama.attention.head_count", 4),
        _number("llama.vocab_size", _WIDTH),
        _text("llama.attention.layer_norm_rms_epsilon") + struct.pack("<If", _F32, 1e-5),
    ]
    matrices = ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down")
    names = ["token_embd.weight", "output.weight", *(f"blk.0.{name}.weight" for name in matrices)]
    norms = ["output_norm.weight", "blk.0.attn_norm.weight", "blk.0.ffn_norm.weight"]
    infos, data = b"", b""
    numbers = np.random.default_rng(1)
    number = next(n for n, t in TENSOR_TYPES.items() if t.name == kind)
    for name in names:
        infos += _text(name) + struct.pack("<IQQIQ", 2, _WIDTH, _WIDTH, number, len(data))
        data += _quantized(numbers.standard_normal((_WIDTH, _WIDTH), np.float32) / 8, number, kind)
    for name in norms:
        infos += _text(name) + struct.pack("<IQIQ", 1, _WIDTH, 0, len(data))
        data += np.ones(_WIDTH, np.float32).tobytes()
    head = struct.pack("<4sIQQ", b"GGUF", 3, len(names) + len(norms), len(keys)) + b"".join(keys) + infos
    return head + bytes(-len(head) % 32) + data


def _quantized(weights: Any, number: int, kind: str) -> bytes:
    import llama_cpp

    if kind == "F32":
        return bytes(weights.tobytes())
    lib = llama_cpp.llama_cpp._lib
    lib.ggml_row_size.restype, lib.ggml_row_size.argtypes = ctypes.c_size_t, (ctypes.c_int, ctypes.c_int64)
    out = np.zeros(lib.ggml_row_size(number, _WIDTH) * _WIDTH, np.uint8)
    quantize = lib.ggml_quantize_chunk
    address, whole = ctypes.c_void_p, ctypes.c_int64
    quantize.restype = ctypes.c_size_t
    quantize.argtypes = (ctypes.c_int, address, address, whole, whole, whole, address)
    importance = np.ones(_WIDTH, np.float32)  # some of the smallest types insist on it
    quantize(number, weights.ctypes.data, out.ctypes.data, 0, _WIDTH, _WIDTH, importance.ctypes.data)
    return out.tobytes()


def _text(text: str) -> bytes:
    return struct.pack("<Q", len(text)) + text.encode()


def _string(name: str, value: str) -> bytes:
    return _text(name) + struct.pack("<I", _STRING) + _text(value)


def _number(name: str, value: int) -> bytes:
    return _text(name) + struct.pack("<II", _U32, value)


class Tiny:
    """A tiny model in a context of two threads; one sequence."""

    def __init__(self, api: Any, path: Path, repack: bool, batch: int = _TILE) -> None:
        params = api.llama_model_default_params()
        params.use_extra_bufts = repack
        self._api = api
        self._model = api.llama_model_load_from_file(str(path).encode(), params)
        if not self._model:
            raise ValueError("does not load")
        params = api.llama_context_default_params()
        params.n_ctx, params.n_batch, params.n_ubatch = _CONTEXT, batch, batch
        params.n_threads = params.n_threads_batch = _THREADS
        params.flash_attn_type = api.LLAMA_FLASH_ATTN_TYPE_ENABLED
        params.type_k = params.type_v = api.GGML_TYPE_F16
        self._context = api.llama_init_from_model(self._model, params)
        if not self._context:
            raise ValueError("has no room")
        self._batch = api.llama_batch_init(batch, 0, 1)

    def close(self) -> None:
        self._api.llama_batch_free(self._batch)
        self._api.llama_free(self._context)
        self._api.llama_model_free(self._model)

    def step(self, start: int, count: int) -> list[bytes]:
        """Compute tokens `start` to `start + count`; the bits of each one's logits."""
        batch = self._batch
        batch.n_tokens = count
        for index in range(count):
            position = start + index
            batch.token[index], batch.pos[index] = position * 7919 % _WIDTH, position
            batch.n_seq_id[index], batch.seq_id[index][0], batch.logits[index] = 1, 0, 1
        if self._api.llama_decode(self._context, batch):
            raise ValueError("does not run")
        logits = self._api.llama_get_logits_ith
        return [ctypes.string_at(logits(self._context, index), 4 * _WIDTH) for index in range(count)]

    def rows_agree(self, length: int, several: tuple[int, ...] = _ROWS) -> bool:
        """Whether tokens after `length` others have the same logits one by one and several at once."""
        memory = self._api.llama_get_memory(self._context)
        self._api.llama_memory_clear(memory, True)
        for start in range(0, length, _TILE):
            self.step(start, min(_TILE, length - start))
        single = [self.step(length + index, 1)[0] for index in range(max(several))]
        for rows in several:
            self._api.llama_memory_seq_rm(memory, 0, length, -1)
            if self.step(length, rows) != single[:rows]:
                return False
        return True


@contextmanager
def _tiny(api: Any, kind: str, repack: bool, batch: int = _TILE) -> Iterator[Tiny]:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "canary.gguf"
        path.write_bytes(tiny_model(kind))
        tiny = Tiny(api, path, repack, batch)
        try:
            yield tiny
        finally:
            tiny.close()


def exact_cells(api: Any, kind: str, repack: bool) -> int:
    """Tokens of KV in use up to which rows of this type come out the same; 0: never, 2**31: always."""
    with _tiny(api, kind, repack) as tiny:
        if not tiny.rows_agree(_SHORT):
            return 0
        return 2**31 if tiny.rows_agree(_LONG) else 256


def exact_tiles(api: Any, kind: str) -> bool:
    """Whether rows come out the same in steps of any size."""
    with _tiny(api, kind, True, max(_TILED_ROWS)) as tiny:
        return tiny.rows_agree(_SHORT, _TILED_ROWS) and tiny.rows_agree(_LONG, _TILED_ROWS)


def main(question: str, kind: str = "Q4_0") -> None:
    llama_cpp = import_binding()
    quiet = llama_cpp.llama_log_callback(lambda _level, _text, _data: None)
    llama_cpp.llama_log_set(quiet, None)
    if question == "amx":
        exact_cells(llama_cpp, kind, True)
    else:
        plain, repacked = (exact_cells(llama_cpp, kind, repack) for repack in (False, True))
        tiles = repacked == 2**31 and exact_tiles(llama_cpp, kind)
        sys.stdout.write(json.dumps({"plain": plain, "repacked": repacked, "tiles": tiles}))
        sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main(*sys.argv[1:])
