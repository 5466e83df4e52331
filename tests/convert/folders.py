"""Published folders written by hand, without torch: safetensors byte by byte, weights from a seeded generator."""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from convert.tokenizers_made import byte_level, save_tokenizer, wordpiece

Array = npt.NDArray[Any]
NAMES = {"float32": "F32", "float16": "F16", "uint16": "BF16", "int64": "I64"}
LLAMA: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "vocab_size": 300,
    "rms_norm_eps": 1e-5,
    "eos_token_id": 1,
}
BERT: dict[str, Any] = {
    "architectures": ["BertModel"],
    "model_type": "bert",
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 64,
    "type_vocab_size": 2,
    "vocab_size": 600,
    "hidden_act": "gelu",
}


def write_safetensors(path: Path, tensors: Mapping[str, Array]) -> None:
    entries: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    data = b""
    for name, values in tensors.items():
        raw = np.ascontiguousarray(values).tobytes()
        offsets = [len(data), len(data) + len(raw)]
        entries[name] = {"dtype": NAMES[values.dtype.name], "shape": list(values.shape), "data_offsets": offsets}
        data += raw
    head = json.dumps(entries).encode()
    path.write_bytes(struct.pack("<Q", len(head)) + head + data)


def llama_tensors(seed: int = 1) -> dict[str, Array]:
    rng = np.random.default_rng(seed)
    d, f, v, k = 32, 48, 300, 16

    def weight(*shape: int) -> Array:
        return np.asarray(rng.standard_normal(shape) / np.sqrt(shape[-1]), np.float32)

    found = {"model.embed_tokens.weight": weight(v, d), "model.norm.weight": weight(d), "lm_head.weight": weight(v, d)}
    for layer in range(2):
        parts = {
            "input_layernorm": weight(d),
            "self_attn.q_proj": weight(d, d),
            "self_attn.k_proj": weight(k, d),
            "self_attn.v_proj": weight(k, d),
            "self_attn.o_proj": weight(d, d),
            "post_attention_layernorm": weight(d),
            "mlp.gate_proj": weight(f, d),
            "mlp.up_proj": weight(f, d),
            "mlp.down_proj": weight(d, f),
        }
        found |= {f"model.layers.{layer}.{name}.weight": values for name, values in parts.items()}
    return found


def llama(folder: Path, tensors: Mapping[str, Array] | None = None, **changes: Any) -> Path:
    """A whole tiny Llama."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(LLAMA | changes))
    write_safetensors(folder / "model.safetensors", tensors or llama_tensors())
    template = "{% for m in messages %}{{ m.content }}{% endfor %}"
    roles = {"bos_token": "<|bos|>", "eos_token": "<|eos|>", "chat_template": template}
    save_tokenizer(byte_level("gpt-2", 300), folder, roles)
    return folder


def bert(folder: Path, pooling: str = "mean", **changes: Any) -> Path:
    """A whole tiny BERT with sentence-transformers' files."""
    rng = np.random.default_rng(2)
    tokenizer = wordpiece(600)
    config = BERT | {"vocab_size": tokenizer.get_vocab_size()} | changes
    d, f = 32, 64

    def weight(*shape: int) -> Array:
        return np.asarray(rng.standard_normal(shape) / np.sqrt(shape[-1]), np.float32)

    found = {
        "embeddings.position_ids": np.arange(64, dtype=np.int64)[None],
        "embeddings.word_embeddings.weight": weight(config["vocab_size"], d) * 3,
        "embeddings.position_embeddings.weight": weight(64, d),
        "embeddings.token_type_embeddings.weight": weight(2, d),
        "embeddings.LayerNorm.weight": weight(d) + 1,
        "embeddings.LayerNorm.bias": weight(d),
        "pooler.dense.weight": weight(d, d),
    }
    for layer in range(2):
        shapes: dict[str, tuple[int, int]] = {
            "attention.self.query": (d, d),
            "attention.self.key": (d, d),
            "attention.self.value": (d, d),
            "attention.output.dense": (d, d),
            "intermediate.dense": (f, d),
            "output.dense": (d, f),
        }
        for name, shape in shapes.items():
            found[f"encoder.layer.{layer}.{name}.weight"] = weight(*shape)
            found[f"encoder.layer.{layer}.{name}.bias"] = weight(shape[0])
        for name in ("attention.output.LayerNorm", "output.LayerNorm"):
            found[f"encoder.layer.{layer}.{name}.weight"] = weight(d) + 1
            found[f"encoder.layer.{layer}.{name}.bias"] = weight(d)
    folder.mkdir(parents=True, exist_ok=True)
    write_safetensors(folder / "model.safetensors", found)
    (folder / "config.json").write_text(json.dumps(config))
    save_tokenizer(tokenizer, folder, {"cls_token": "[CLS]", "sep_token": "[SEP]", "unk_token": "[UNK]"})
    steps = [{"type": f"sentence_transformers.models.{kind}", "path": place} for kind, place in STEPS]
    (folder / "modules.json").write_text(json.dumps(steps))
    (folder / "1_Pooling").mkdir(exist_ok=True)
    modes = {"mean": "mean_tokens", "cls": "cls_token", "last": "lasttoken", "max": "max_tokens"}
    said = {f"pooling_mode_{mode}": kind == pooling for kind, mode in modes.items()}
    (folder / "1_Pooling" / "config.json").write_text(json.dumps(said))
    return folder


STEPS = (("Transformer", ""), ("Pooling", "1_Pooling"), ("Normalize", "2_Normalize"))
