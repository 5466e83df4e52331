"""What a GGUF model costs llama.cpp in memory, from its header alone. Pure; no library is imported."""

from __future__ import annotations

from typing import Any

from edgellm.contracts.engine import CostModel, ModelFile, TensorInfo

MIB = 1024 * 1024
F16_BYTES = 2
F32_BYTES = 4

# Measured on Linux: an interpreter with numpy, the templates and llama.cpp's libraries, before any model.
PROCESS = 64 * MIB
SEQUENCES = 16  # rows of logits kept, in the scratch buffer and beside it
MICRO_BATCH = 512  # tokens computed at once: scratch memory grows with it, speed no more
WORD = 220  # bytes per vocabulary entry, measured; the tokenizer may hold a second copy


def cost_model(model: ModelFile) -> CostModel:
    """Weights as stored, an F16 KV cell per token and attention layer, scratch for a micro-batch.

    Each token of capacity also widens the F16 attention mask by a micro-batch; windowed layers have their own mask.
    Windowed layers are counted as if they kept everything: an upper bound that is exact while the capacity is below
    window x sequences.
    """
    masks = 2 if _number(model, "attention.sliding_window") else 1
    return CostModel(
        weights=sum(tensor.nbytes for tensor in model.tensors),
        kv_per_token=(kv_values_per_token(model) + masks * MICRO_BATCH) * F16_BYTES,
        overhead=PROCESS + _scratch(model),
    )


def embedding_cost(model: ModelFile, batch_tokens: int) -> CostModel:
    """For calls of `batch_tokens` tokens: the same, with scratch for all of them at once and no logits."""
    cost = cost_model(model)
    more = max(0, batch_tokens - MICRO_BATCH) * F32_BYTES * _activations_per_token(model)
    return CostModel(cost.weights, cost.kv_per_token, cost.overhead + more)


def kv_values_per_token(model: ModelFile) -> int:
    """Numbers stored per token over all layers, from the shapes of the projections that make them.

    `shape[-1]` of a projection is what it makes. Layers without attention (recurrent ones) have none of these tensors
    and store nothing per token.
    """
    tensors = {tensor.name: tensor for tensor in model.tensors}
    layers = _number(model, "block_count")
    return sum(_layer_values(model, tensors, layer) for layer in range(layers))


def _layer_values(model: ModelFile, tensors: dict[str, TensorInfo], layer: int) -> int:
    latent = tensors.get(f"blk.{layer}.attn_kv_a_mqa.weight")
    if latent is not None:
        return latent.shape[-1]  # multi-head latent attention stores one compressed key and no value
    keys = tensors.get(f"blk.{layer}.attn_k.weight")
    values = tensors.get(f"blk.{layer}.attn_v.weight")
    if keys is not None:
        return keys.shape[-1] + (values or keys).shape[-1]
    if f"blk.{layer}.attn_qkv.weight" in tensors:
        return _heads(model, layer) * (_head_size(model, "key_length") + _head_size(model, "value_length"))
    return 0


def _heads(model: ModelFile, layer: int) -> int:
    """Key-value heads of a fused projection; one number for all layers, or a list with one for each."""
    heads = model.metadata.get(f"{model.architecture}.attention.head_count_kv")
    if isinstance(heads, list | tuple):
        return _whole(heads[layer]) if layer < len(heads) else 0
    return _whole(heads) or _number(model, "attention.head_count")


def _head_size(model: ModelFile, key: str) -> int:
    size = _number(model, f"attention.{key}")
    return size or _number(model, "embedding_length") // max(1, _number(model, "attention.head_count"))


def _scratch(model: ModelFile) -> int:
    """Activations of a micro-batch, rows of logits, the vocabulary: fitted, upwards, to what llama.cpp reports."""
    vocabulary = max((t.shape[-1] for t in model.tensors if t.name == "token_embd.weight"), default=0)
    activations = MICRO_BATCH * _activations_per_token(model)
    logits = 2 * SEQUENCES * vocabulary
    return F32_BYTES * (activations + logits) + 2 * WORD * vocabulary


def _activations_per_token(model: ModelFile) -> int:
    widest = max((t.shape[-1] for t in model.tensors if ".ffn_up" in t.name or ".ffn_gate" in t.name), default=0)
    return 8 * _number(model, "embedding_length") + 3 * widest


def _number(model: ModelFile, key: str) -> int:
    value: Any = model.metadata.get(f"{model.architecture}.{key}")
    if isinstance(value, list | tuple):
        return max((_whole(item) for item in value), default=0)
    return _whole(value)


def _whole(value: Any) -> int:
    return value if isinstance(value, int) and value > 0 else 0
