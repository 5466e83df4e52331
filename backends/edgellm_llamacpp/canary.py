"""Runs one step of a tiny model with AMX and ends with 0; a build whose AMX code is broken ends with a signal.

A process of its own, because there is no other way to learn it: `python -m edgellm_llamacpp.canary`.
"""

from __future__ import annotations

import os
import struct
import tempfile
from pathlib import Path
from typing import Any

_U32, _F32, _STRING = 4, 6, 8  # GGUF value types
_TYPE_F32, _TYPE_Q4_0 = 0, 2  # ggml tensor types
_WIDTH = 64  # every dimension: two tiles of AMX rows
_TOKENS = 8  # more than one, so that tiles are used


def tiny_model() -> bytes:
    """A llama of one layer without a vocabulary, all weights zero, as GGUF version 3."""
    keys = [
        _string("general.architecture", "llama"),
        _string("tokenizer.ggml.model", "none"),
        _number("llama.context_length", 64),
        _number("llama.embedding_length", _WIDTH),
        _number("llama.block_count", 1),
        _number("llama.feed_forward_length", _WIDTH),
        _number("llama.attention.head_count", 1),
        _number("llama.vocab_size", _WIDTH),
        _text("llama.attention.layer_norm_rms_epsilon") + struct.pack("<If", _F32, 1e-5),
    ]
    matrices = ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down")
    names = ["token_embd.weight", "output.weight", *(f"blk.0.{name}.weight" for name in matrices)]
    norms = ["output_norm.weight", "blk.0.attn_norm.weight", "blk.0.ffn_norm.weight"]
    infos, data = b"", b""
    for name in names:
        infos += _text(name) + struct.pack("<IQQIQ", 2, _WIDTH, _WIDTH, _TYPE_Q4_0, len(data))
        data += bytes(_WIDTH * _WIDTH // 32 * 18)
    for name in norms:
        infos += _text(name) + struct.pack("<IQIQ", 1, _WIDTH, _TYPE_F32, len(data))
        data += bytes(_WIDTH * 4)
    head = struct.pack("<4sIQQ", b"GGUF", 3, len(names) + len(norms), len(keys)) + b"".join(keys) + infos
    return head + bytes(-len(head) % 32) + data


def _text(text: str) -> bytes:
    return struct.pack("<Q", len(text)) + text.encode()


def _string(name: str, value: str) -> bytes:
    return _text(name) + struct.pack("<I", _STRING) + _text(value)


def _number(name: str, value: int) -> bytes:
    return _text(name) + struct.pack("<II", _U32, value)


def run(api: Any, path: Path) -> int:
    """One step of several tokens on two threads; 0 when llama.cpp did it."""
    model = api.llama_model_load_from_file(str(path).encode(), api.llama_model_default_params())
    if not model:
        return 2
    params = api.llama_context_default_params()
    params.n_ctx = params.n_batch = params.n_ubatch = _WIDTH
    params.n_threads = params.n_threads_batch = 2
    context = api.llama_init_from_model(model, params)
    if not context:
        return 2
    tokens = (api.llama_token * _TOKENS)(*range(_TOKENS))
    return int(api.llama_decode(context, api.llama_batch_get_one(tokens, _TOKENS)))


def main() -> None:
    import llama_cpp

    quiet = llama_cpp.llama_log_callback(lambda _level, _text, _data: None)
    llama_cpp.llama_log_set(quiet, None)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "canary.gguf"
        path.write_bytes(tiny_model())
        code = run(llama_cpp, path)
    os._exit(code)


if __name__ == "__main__":
    main()
