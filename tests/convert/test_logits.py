"""Converted models compute what transformers computes, for every family and every way of scaling positions."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from convert import folders, llama, tiny_models
from edgellm.library.convert.convert import OutType, plan_conversion

pytestmark = pytest.mark.slow

LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 10000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
YARN = {
    "rope_type": "yarn",
    "rope_theta": 10000.0,
    "factor": 4.0,
    "original_max_position_embeddings": 64,
}
LONGROPE = {
    "rope_type": "longrope",
    "rope_theta": 10000.0,
    "short_factor": [1.0 + 0.05 * i for i in range(8)],
    "long_factor": [1.5 + 0.5 * i for i in range(8)],
    "original_max_position_embeddings": 256,
}
GEMMA = {"head_dim": 16, "query_pre_attn_scalar": 16, "sliding_window": 24, "num_hidden_layers": 7}
MOE = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32, "norm_topk_prob": True, "head_dim": 32}

MODELS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "llama": ("LlamaForCausalLM", "LlamaConfig", {}),
    "llama tied": ("LlamaForCausalLM", "LlamaConfig", {"tie_word_embeddings": True}),
    "llama biases": ("LlamaForCausalLM", "LlamaConfig", {"attention_bias": True, "mlp_bias": True}),
    "llama 3 rope": ("LlamaForCausalLM", "LlamaConfig", {"rope_parameters": LLAMA3}),
    "llama linear": (
        "LlamaForCausalLM",
        "LlamaConfig",
        {"rope_parameters": {"rope_type": "linear", "factor": 2.0, "rope_theta": 10000.0}},
    ),
    "llama yarn": ("LlamaForCausalLM", "LlamaConfig", {"rope_parameters": YARN}),
    "llama yarn attention factor": (
        "LlamaForCausalLM",
        "LlamaConfig",
        {"rope_parameters": YARN | {"attention_factor": 0.8}},
    ),
    "mistral": ("MistralForCausalLM", "MistralConfig", {"head_dim": 32, "sliding_window": None}),
    "qwen2": ("Qwen2ForCausalLM", "Qwen2Config", {}),
    "qwen2 yarn": ("Qwen2ForCausalLM", "Qwen2Config", {"rope_parameters": YARN}),
    "qwen3": ("Qwen3ForCausalLM", "Qwen3Config", {"head_dim": 32, "tie_word_embeddings": True}),
    "qwen3 moe": ("Qwen3MoeForCausalLM", "Qwen3MoeConfig", MOE),
    "gemma3": ("Gemma3ForCausalLM", "Gemma3TextConfig", GEMMA),
    "gemma3 other scale": ("Gemma3ForCausalLM", "Gemma3TextConfig", GEMMA | {"query_pre_attn_scalar": 40}),
    "gemma3 linear": (
        "Gemma3ForCausalLM",
        "Gemma3TextConfig",
        GEMMA
        | {
            "rope_parameters": {
                "full_attention": {"rope_type": "linear", "rope_theta": 1e6, "factor": 8.0},
                "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
            }
        },
    ),
    "gemma3 pattern": (
        "Gemma3ForCausalLM",
        "Gemma3TextConfig",
        GEMMA | {"num_hidden_layers": 3, "layer_types": ["full_attention", "sliding_attention", "full_attention"]},
    ),
    "phi3": ("Phi3ForCausalLM", "Phi3Config", {"pad_token_id": 0, "sliding_window": None}),
    "phi3 longrope": (
        "Phi3ForCausalLM",
        "Phi3Config",
        {
            "pad_token_id": 0,
            "rope_parameters": LONGROPE,
            "original_max_position_embeddings": 256,
            "max_position_embeddings": 1024,
        },
    ),
    "phi4 mini": (
        "Phi3ForCausalLM",
        "Phi3Config",
        {
            "pad_token_id": 0,
            "rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.75},
        },
    ),
}


def converted(folder: Path, out_type: OutType | None = None) -> Path:
    target = folder / "model.gguf"
    with target.open("wb") as out:
        out.writelines(plan_conversion(folder, out_type).chunks())
    return target


@pytest.mark.parametrize("name", MODELS)
def test_every_position_has_transformers_logits(name: str, tmp_path: Path) -> None:
    model = tiny_models.build(*MODELS[name])
    tiny_models.save(model, tmp_path)
    ids = np.random.default_rng(7).integers(3, tiny_models.VOCABULARY, 60).tolist()
    theirs = tiny_models.logits(model, ids)
    assert float(theirs.std()) > 0.1
    assert tiny_models.difference(llama.logits(converted(tmp_path), ids, 64), theirs) < 1e-3


def test_longrope_takes_the_long_factors_beyond_the_original_context(tmp_path: Path) -> None:
    model = tiny_models.build(*MODELS["phi3 longrope"])
    tiny_models.save(model, tmp_path)
    ids = np.random.default_rng(8).integers(3, tiny_models.VOCABULARY, 300).tolist()
    assert tiny_models.difference(llama.logits(converted(tmp_path), ids, 512), tiny_models.logits(model, ids)) < 1e-3


@pytest.mark.parametrize("stored", ["bfloat16", "float16"])
def test_sixteen_bits_become_thirty_two_without_loss(stored: str, tmp_path: Path) -> None:
    """The other way round llama.cpp rounds what it multiplies with, too: bytes are compared instead, in test_types."""
    model = tiny_models.build("LlamaForCausalLM", "LlamaConfig", {})
    tiny_models.save(model, tmp_path, stored)
    model = tiny_models.load(tmp_path)
    ids = np.random.default_rng(9).integers(3, tiny_models.VOCABULARY, 40).tolist()
    found = llama.logits(converted(tmp_path, "F32"), ids, 64)
    assert tiny_models.difference(found, tiny_models.logits(model, ids)) < 1e-3


def test_gemma_with_eyes_is_its_text_part(tmp_path: Path) -> None:
    """Names as the models that see pictures have them, before transformers 5 and since."""
    model = tiny_models.build(*MODELS["gemma3"])
    tiny_models.save(model, tmp_path / "plain")
    tensors = {name: value.numpy() for name, value in model.state_dict().items() if name != "lm_head.weight"}
    config = json.loads((tmp_path / "plain" / "config.json").read_text())
    outer = {"architectures": ["Gemma3ForConditionalGeneration"], "text_config": config, "vision_config": {}}
    expected = [tensor.name for tensor in plan_conversion(tmp_path / "plain").tensors]
    for prefix in ("language_model.model.", "model.language_model."):
        folder = tmp_path / prefix
        shutil.copytree(tmp_path / "plain", folder)
        named = {name.replace("model.", prefix, 1): value for name, value in tensors.items()}
        named["vision_tower.patch.weight"] = np.zeros((2, 2), np.float32)
        folders.write_safetensors(folder / "model.safetensors", named)
        (folder / "config.json").write_text(json.dumps(outer))
        conversion = plan_conversion(folder)
        assert "pictures" in conversion.notes[0]
        assert [tensor.name for tensor in conversion.tensors] == expected
    ids = np.random.default_rng(7).integers(3, tiny_models.VOCABULARY, 60).tolist()
    found = llama.logits(converted(folder), ids, 64)
    assert tiny_models.difference(found, tiny_models.logits(model, ids)) < 1e-3
