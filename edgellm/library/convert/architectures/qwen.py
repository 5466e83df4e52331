"""Qwen 2 and 2.5 (biases on q, k, v), Qwen 3 (norms on q and k), and Qwen 3's mixture of experts."""

from __future__ import annotations

from typing import Any

from edgellm.library.convert import rope
from edgellm.library.convert.architectures import decoder
from edgellm.library.convert.config import Config
from edgellm.library.convert.rules import Architecture, Rule, half, layer_rules

# Bare models (Qwen3Model) leave out the first part.
RENAMES = ((r"^(layers|embed_tokens|norm)\.", r"model.\1."),)

OUTER = (
    Rule("model.embed_tokens.weight", "token_embd.weight", "v d"),
    Rule("model.norm.weight", "output_norm.weight", "d"),
    Rule("lm_head.weight", "output.weight", "v d", optional=True),
)
ATTENTION = (
    Rule("input_layernorm.weight", "attn_norm.weight", "d"),
    Rule("self_attn.q_proj.weight", "attn_q.weight", "q d"),
    Rule("self_attn.k_proj.weight", "attn_k.weight", "k d"),
    Rule("self_attn.v_proj.weight", "attn_v.weight", "k d"),
    Rule("self_attn.o_proj.weight", "attn_output.weight", "d q"),
    Rule("post_attention_layernorm.weight", "ffn_norm.weight", "d"),
)
BIASES = (
    Rule("self_attn.q_proj.bias", "attn_q.bias", "q"),
    Rule("self_attn.k_proj.bias", "attn_k.bias", "k"),
    Rule("self_attn.v_proj.bias", "attn_v.bias", "k"),
)
HEAD_NORMS = (
    Rule("self_attn.q_norm.weight", "attn_q_norm.weight", "h"),
    Rule("self_attn.k_norm.weight", "attn_k_norm.weight", "h"),
)
FEED_FORWARD = (
    Rule("mlp.gate_proj.weight", "ffn_gate.weight", "f d"),
    Rule("mlp.up_proj.weight", "ffn_up.weight", "f d"),
    Rule("mlp.down_proj.weight", "ffn_down.weight", "d f"),
)
EXPERTS = (
    Rule("mlp.gate.weight", "ffn_gate_inp.weight", "e d", exact=True),
    Rule("mlp.experts.{e}.gate_proj.weight", "ffn_gate_exps.weight", "x d"),
    Rule("mlp.experts.{e}.up_proj.weight", "ffn_up_exps.weight", "x d"),
    Rule("mlp.experts.{e}.down_proj.weight", "ffn_down_exps.weight", "d x"),
    # The same in one piece.
    Rule("mlp.experts.gate_up_proj", "ffn_gate_exps.weight", "e 2x d", half(0, axis=1)),
    Rule("mlp.experts.gate_up_proj", "ffn_up_exps.weight", "e 2x d", half(1, axis=1)),
    Rule("mlp.experts.down_proj", "ffn_down_exps.weight", "e d x"),
)


def _metadata(config: Config) -> dict[str, Any]:
    return decoder.metadata(config) | rope.metadata(config, decoder.head_size(config))


def _experts(config: Config) -> int:
    return config.whole("num_local_experts" if config.has("num_local_experts") else "num_experts")


def _moe_sizes(config: Config) -> dict[str, int]:
    experts, inner = _experts(config), config.whole("moe_intermediate_size")
    if config.whole("decoder_sparse_step", 1) != 1 or config.get("mlp_only_layers"):
        config.bad("mlp_only_layers", "layers without experts are not supported", "look for a GGUF of the model")
    return decoder.sizes(config) | {"experts": experts, "e": experts, "x": inner}


def _moe_metadata(config: Config) -> dict[str, Any]:
    if config.flag("norm_topk_prob") is not True:
        config.bad("norm_topk_prob", "the engine always normalises the experts' weights", "look for another model")
    return _metadata(config) | {
        "expert_count": _experts(config),
        "expert_used_count": config.whole("num_experts_per_tok"),
        "expert_feed_forward_length": config.whole("moe_intermediate_size"),
    }


QWEN2 = Architecture(
    name="qwen2",
    classes=("Qwen2ForCausalLM", "Qwen2Model"),
    sizes=decoder.sizes,
    metadata=_metadata,
    rules=(*OUTER, *layer_rules(*ATTENTION, *BIASES, *FEED_FORWARD)),
    renames=RENAMES,
    ignored=decoder.FREQUENCIES,
    notes=decoder.full_attention_note,
)
QWEN3 = Architecture(
    name="qwen3",
    classes=("Qwen3ForCausalLM", "Qwen3Model"),
    sizes=decoder.sizes,
    metadata=_metadata,
    rules=(*OUTER, *layer_rules(*ATTENTION, *HEAD_NORMS, *FEED_FORWARD)),
    renames=RENAMES,
    ignored=decoder.FREQUENCIES,
    notes=decoder.full_attention_note,
)
QWEN3_MOE = Architecture(
    name="qwen3moe",
    classes=("Qwen3MoeForCausalLM",),
    sizes=_moe_sizes,
    metadata=_moe_metadata,
    rules=(*OUTER, *layer_rules(*ATTENTION, *HEAD_NORMS, *EXPERTS)),
    renames=RENAMES,
    ignored=decoder.FREQUENCIES,
    notes=decoder.full_attention_note,
)
