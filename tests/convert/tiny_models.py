"""Tiny random models made with transformers, saved as their authors would: what the converter is held against."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

VOCABULARY = 384
DECODER: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "bos_token_id": 0,
    "eos_token_id": 1,
    "pad_token_id": None,
}


def build(class_name: str, config_class: str, changes: dict[str, Any]) -> Any:
    """A model with random weights, large enough that every part of it matters."""
    import torch
    import transformers

    torch.manual_seed(1234)
    config = getattr(transformers, config_class)(**{**DECODER, **changes})
    config._attn_implementation = "eager"
    model = getattr(transformers, class_name)(config).float().eval()
    generator = torch.Generator().manual_seed(4321)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            if parameter.ndim == 1:
                parameter.add_(0.3 * noise)
            elif "embed" in name:
                parameter.copy_(0.5 * noise)
            else:
                parameter.copy_(noise * (1.5 / parameter.shape[-1] ** 0.5))
    return model


def save(model: Any, folder: Path, dtype: str = "float32") -> None:
    """With a small byte-level tokenizer."""
    import torch

    from convert.tokenizers_made import byte_level, save_tokenizer

    model.to(getattr(torch, dtype)).save_pretrained(folder, safe_serialization=True)
    save_tokenizer(byte_level("gpt-2", VOCABULARY), folder, {"bos_token": "<|bos|>", "eos_token": "<|eos|>"})


def load(folder: Path) -> Any:
    """A saved model, computing in F32."""
    import transformers

    return transformers.AutoModelForCausalLM.from_pretrained(folder, dtype="float32", attn_implementation="eager")


def logits(model: Any, ids: list[int]) -> npt.NDArray[np.float32]:
    """Shape (tokens, vocabulary)."""
    import torch

    with torch.no_grad():
        found: npt.NDArray[np.float32] = model(torch.tensor([ids])).logits[0].float().numpy()
    return found


def difference(ours: npt.NDArray[np.float32], theirs: npt.NDArray[np.float32]) -> float:
    """The largest relative error of a position: norm of the difference over norm of the logits without their mean."""
    spread = theirs - theirs.mean(axis=-1, keepdims=True)
    errors = np.linalg.norm(ours - theirs, axis=-1) / np.linalg.norm(spread, axis=-1)
    return float(errors.max())
