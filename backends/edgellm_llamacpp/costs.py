"""What a GGUF model costs llama.cpp in memory, from its header alone. Pure but for the CPU's own flags.

Weights and KV are exact: the tests hold them against llama.cpp's own figures for every kind of layer. Scratch follows
the shapes of the widest layer; what llama.cpp's allocator makes of them is within a quarter of that.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from edgellm.contracts.engine import CostModel, KVCost, KVKind, ModelFile
from edgellm.errors import InvalidRequest
from edgellm.formats.gguf_types import TENSOR_TYPES, TensorType
from edgellm.formats.layers import LayerMemory, layers
from edgellm_llamacpp.repacking import repacked

MIB: Final = 1024 * 1024
F16_BYTES: Final = 2
F32_BYTES: Final = 4

MICRO_BATCH: Final = 512  # tokens computed at once: scratch memory grows with it, speed no more
BLOCK: Final = 256  # llama.cpp rounds its KV up to this many cells

# Quantised keys and values cost speed where llama.cpp's own attention reads them (prompts at 0.7 of f16's with q8_0, at
# half with q4_0): there they are for what would not fit otherwise. Ours reads OWN_KV (repacking.py) as fast as f16.
KV_TYPES: Final = ("f16", "bf16", "f32", "q8_0", "q5_1", "q5_0", "q4_1", "q4_0", "iq4_nl")

# Measured on Linux: what an interpreter with numpy, the templates and llama.cpp's libraries takes beside its model.
# Pages of the libraries' files are the system's to map and to take back.
LIBRARIES: Final = 26 * MIB
PROCESS: Final = LIBRARIES + 30 * MIB
EMBEDDER: Final = LIBRARIES + 32 * MIB  # without templates and samplers, but at its most, with what loading frees
# Bytes per vocabulary entry, measured; and more for each where there are merges, about one for each entry.
WORD, MERGE = 175, 175
EMBEDDER_WORD, EMBEDDER_MERGE = 180, 210


def cost_model(model: ModelFile, kv_type: str) -> CostModel:
    """Weights as stored, KV of `kv_type` by kind of layer, scratch for a micro-batch.

    Raises InvalidRequest for a type that is not one of KV_TYPES or whose blocks do not fit the model's heads.
    """
    memory = layers(model)
    _require_fitting(model, kv_type, attends=any(layer.values for layer in memory))
    return CostModel(
        weights=_weights(model),
        kv=_kv(memory, kv_type),
        process=PROCESS + _vocabulary(model, WORD, MERGE),
        activations=F32_BYTES * _activations(model),
        state=F32_BYTES * max((layer.state for layer in memory), default=0),
        mask=F16_BYTES,
        logits=F32_BYTES * _words(model),
        step_tokens=MICRO_BATCH,
        block=BLOCK,
    )


def embedding_cost(model: ModelFile, batch_tokens: int) -> CostModel:
    """For calls of `batch_tokens` tokens, with scratch for all of them at once.

    llama.cpp makes room for the logits of every token, also where it computes none, and fills it with noughts.
    """
    cost = cost_model(model, KV_TYPES[0])
    activations = cost.activations + F32_BYTES * _words(model)
    if not any(kind.per_token for kind in cost.kv):  # an encoder: each token has a mask over all of the call
        masks = 2 if _number(model, "attention.sliding_window") else 1
        activations += masks * F16_BYTES * batch_tokens
    process = EMBEDDER + _vocabulary(model, EMBEDDER_WORD, EMBEDDER_MERGE)
    return msgspec.structs.replace(cost, step_tokens=batch_tokens, activations=activations, process=process, logits=0)


def _weights(model: ModelFile) -> int:
    """The tensors as stored; a shared embedding counts twice where the output is rearranged for the CPU."""
    held = sum(tensor.nbytes for tensor in model.tensors)
    tensors = {tensor.name: tensor for tensor in model.tensors}
    embedding = tensors.get("token_embd.weight")
    if embedding is not None and "output.weight" not in tensors and repacked(embedding.type, embedding.shape):
        held += embedding.nbytes
    return held


def _kv(memory: list[LayerMemory], kv_type: str) -> tuple[KVCost, ...]:
    """The layers' memories added up by kind and window."""
    found: dict[tuple[KVKind, int], KVCost] = {}
    for layer in memory:
        key = layer.kind, layer.window
        so_far = found.get(key, KVCost(layer.kind, 0, window=layer.window))
        found[key] = KVCost(
            layer.kind,
            so_far.layers + 1,
            so_far.per_token + _row(layer.values, kv_type),
            so_far.per_sequence + F32_BYTES * layer.state,
            layer.window,
        )
    return tuple(found.values())


def _require_fitting(model: ModelFile, kv_type: str, *, attends: bool) -> None:
    if kv_type not in KV_TYPES:
        raise InvalidRequest(
            f"llama.cpp has no KV type {kv_type}", hint="one of " + ", ".join(KV_TYPES), param="kv_type"
        )
    block = _tensor_type(kv_type).elements
    for key in ("key_length", "value_length"):
        size = _head_size(model, key)
        if attends and size % block:
            raise InvalidRequest(
                f"{kv_type} stores keys and values in blocks of {block}; this model's heads have {size} numbers",
                hint="use f16 for it",
                param="kv_type",
            )


def _tensor_type(kv_type: str) -> TensorType:
    return next(kind for kind in TENSOR_TYPES.values() if kind.name.lower() == kv_type)


def _row(values: int, kv_type: str) -> int:
    """Bytes of one token's numbers in one layer, in whole blocks of the type."""
    kind = _tensor_type(kv_type)
    return -(-values // kind.elements) * kind.nbytes


def _activations(model: ModelFile) -> int:
    """Numbers held at once for one token of a step, in the widest layer: its network's, or its recurrent state's."""
    width = _number(model, "embedding_length")
    queries = _number(model, "attention.head_count") * _head_size(model, "key_length")
    used = _number(model, "expert_used_count")
    dense = max((t.shape[0] for t in model.tensors if t.name.endswith(".ffn_down.weight")), default=0)
    expert = max((t.shape[0] for t in model.tensors if t.name.endswith(".ffn_down_exps.weight")), default=0)
    experts = max(3 * used * expert, used * (2 * width + expert)) if expert else 0
    recurrent = 13 * _number(model, "ssm.inner_size") // 2
    return max(3 * width + queries + max(3 * dense, experts), recurrent)


def _head_size(model: ModelFile, key: str) -> int:
    size = _number(model, f"attention.{key}")
    return size or _number(model, "embedding_length") // max(1, _number(model, "attention.head_count"))


def _words(model: ModelFile) -> int:
    return max((t.shape[-1] for t in model.tensors if t.name == "token_embd.weight"), default=0)


def _vocabulary(model: ModelFile, word: int, merge: int) -> int:
    """Bytes of the vocabulary in memory, with so many for each entry."""
    merges = model.metadata.get("tokenizer.ggml.model") == "gpt2"
    return _words(model) * (word + merge if merges else word)


def _number(model: ModelFile, key: str) -> int:
    """A whole number of the architecture, of a list the largest; 0 where the file does not say."""
    value: Any = model.metadata.get(f"{model.architecture}.{key}")
    if isinstance(value, list):
        return max((_whole(item) for item in value), default=0)
    return _whole(value)


def _whole(value: Any) -> int:
    return value if type(value) is int and value > 0 else 0
