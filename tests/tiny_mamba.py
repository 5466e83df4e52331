"""A Mamba of two layers with random weights: a state that moves on with every token and never steps back."""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np

_WIDTH, _INNER, _STATE, _RANK, _CONV, _LAYERS = 64, 128, 16, 4, 4, 2


def write_mamba(path: Path) -> Path:
    """Its vocabulary is bytes and three control tokens."""
    writer = gguf.GGUFWriter(path, "mamba")
    writer.add_context_length(1024)
    writer.add_embedding_length(_WIDTH)
    writer.add_feed_forward_length(0)
    writer.add_head_count(0)
    writer.add_block_count(_LAYERS)
    writer.add_ssm_conv_kernel(_CONV)
    writer.add_ssm_inner_size(_INNER)
    writer.add_ssm_state_size(_STATE)
    writer.add_ssm_time_step_rank(_RANK)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_file_type(gguf.LlamaFileType.ALL_F32)
    size = _add_vocabulary(writer)
    numbers = np.random.default_rng(3)

    def add(name: str, *shape: int, scale: float = 0.3) -> None:
        writer.add_tensor(name, (numbers.standard_normal(shape) * scale).astype(np.float32))

    add("token_embd.weight", size, _WIDTH, scale=1.0)
    writer.add_tensor("output_norm.weight", np.ones(_WIDTH, np.float32))
    add("output.weight", size, _WIDTH)
    for layer in range(_LAYERS):
        block = f"blk.{layer}."
        writer.add_tensor(block + "attn_norm.weight", np.ones(_WIDTH, np.float32))
        add(block + "ssm_in.weight", 2 * _INNER, _WIDTH)
        add(block + "ssm_conv1d.weight", _INNER, _CONV)
        add(block + "ssm_conv1d.bias", _INNER)
        add(block + "ssm_x.weight", _RANK + 2 * _STATE, _INNER)
        add(block + "ssm_dt.weight", _INNER, _RANK)
        add(block + "ssm_dt.bias", _INNER)
        decay = -np.tile(np.arange(1, _STATE + 1, dtype=np.float32), (_INNER, 1))
        writer.add_tensor(block + "ssm_a", decay)
        add(block + "ssm_d", _INNER)
        add(block + "ssm_out.weight", _WIDTH, _INNER)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _add_vocabulary(writer: gguf.GGUFWriter) -> int:
    kind = gguf.TokenType
    tokens = [b"<unk>", b"<s>", b"</s>", *(f"<0x{byte:02X}>".encode() for byte in range(256))]
    types = [kind.UNKNOWN, kind.CONTROL, kind.CONTROL, *([kind.BYTE] * 256)]
    writer.add_tokenizer_model("llama")
    writer.add_token_list(tokens)
    writer.add_token_scores([0.0] * len(tokens))
    writer.add_token_types(types)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_unk_token_id(0)
    return len(tokens)
