"""Gemma 3, the text part: sliding windows in five of six layers, norms stored as their difference from one."""

from __future__ import annotations

import math
from typing import Any

from edgellm.library.convert import rope
from edgellm.library.convert.architectures import decoder
from edgellm.library.convert.config import Config
from edgellm.library.convert.rules import Architecture, Rule, layer_rules, one_more
from edgellm.library.convert.weights import Weight, of_floats

LARGEST_LAYERS = 62  # the 27B: the engine divides by the root of another number there


def _text(config: Config) -> Config:
    """Models that also see keep what concerns text apart."""
    return config.within("text_config") if config.has("text_config") else config


def _head(config: Config) -> int:
    return config.whole("head_dim", 256)


def _filled(config: Config) -> Config:
    """With transformers' defaults, which Google's own files leave out."""
    text = _text(config)
    defaults = {
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "head_dim": 256,
        "rms_norm_eps": 1e-6,
        "max_position_embeddings": 131_072,
        "vocab_size": 262_208,
        "sliding_window": 4096,
    }
    keys = (*defaults, *_KEYS)
    return Config(config.path, {key: text.get(key) if text.has(key) else defaults.get(key) for key in keys})


_KEYS = (
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "layer_types",
    "sliding_window_pattern",
    "query_pre_attn_scalar",
    "final_logit_softcapping",
    "attn_logit_softcapping",
    "rope_parameters",
    "rope_scaling",
    "rope_theta",
    "rope_local_base_freq",
    "use_bidirectional_attention",
)


def _windowed(config: Config) -> list[bool]:
    """For each layer whether it has a window."""
    layers = config.whole("num_hidden_layers")
    kinds = config.get("layer_types")
    if kinds is None:
        every = config.whole("sliding_window_pattern", 6)
        return [(layer + 1) % every != 0 for layer in range(layers)]
    known = {"sliding_attention": True, "full_attention": False}
    if not isinstance(kinds, list) or len(kinds) != layers or not all(kind in known for kind in kinds):
        config.bad("layer_types", f"expected {layers} times sliding_attention or full_attention")
    return [known[kind] for kind in kinds]


def _metadata(outer: Config) -> dict[str, Any]:
    config = _filled(outer)
    if config.has("attn_logit_softcapping") or config.get("use_bidirectional_attention"):
        config.bad("attn_logit_softcapping", "not part of Gemma 3 as it is known here", "look for a GGUF of the model")
    local = config.number("rope_local_base_freq", 10_000.0)
    if config.has("rope_parameters"):
        local = rope.parameters(config, "sliding_attention").number("rope_theta", local)
    theta = rope.parameters(config).number("rope_theta", 1_000_000.0)
    found = decoder.metadata(config) | rope.metadata(config, _head(config), kinds=("default", "linear"))
    found |= {
        "rope.freq_base": theta,
        "rope.freq_base_swa": local,
        "attention.sliding_window": config.whole("sliding_window"),
        "attention.sliding_window_pattern": _windowed(config),
    }
    if config.has("final_logit_softcapping"):
        found["final_logit_softcapping"] = config.number("final_logit_softcapping")
    return found


def _query_norm(weight: Weight, outer: Config) -> Weight:
    """The engine scales queries by one over the root of a head (at 27B: of d / heads). Where the model wants another
    scale, the norm before it takes the difference, and the product is the same.
    """
    config = _filled(outer)
    at_27b = config.whole("num_hidden_layers") == LARGEST_LAYERS
    engine = config.whole("hidden_size") // config.whole("num_attention_heads") if at_27b else _head(config)
    wanted = config.number("query_pre_attn_scalar", 256)
    return of_floats((weight.floats() + 1) * math.sqrt(engine / wanted))


GEMMA3 = Architecture(
    name="gemma3",
    classes=("Gemma3ForCausalLM", "Gemma3ForConditionalGeneration"),
    sizes=lambda config: decoder.sizes(_filled(config)),
    metadata=_metadata,
    rules=(
        Rule("model.embed_tokens.weight", "token_embd.weight", "v d"),
        Rule("model.norm.weight", "output_norm.weight", "d", one_more),
        Rule("lm_head.weight", "output.weight", "v d", optional=True),
        *layer_rules(
            Rule("input_layernorm.weight", "attn_norm.weight", "d", one_more),
            Rule("self_attn.q_proj.weight", "attn_q.weight", "q d"),
            Rule("self_attn.k_proj.weight", "attn_k.weight", "k d"),
            Rule("self_attn.v_proj.weight", "attn_v.weight", "k d"),
            Rule("self_attn.q_norm.weight", "attn_q_norm.weight", "h", _query_norm),
            Rule("self_attn.k_norm.weight", "attn_k_norm.weight", "h", one_more),
            Rule("self_attn.o_proj.weight", "attn_output.weight", "d q"),
            Rule("post_attention_layernorm.weight", "post_attention_norm.weight", "d", one_more),
            Rule("pre_feedforward_layernorm.weight", "ffn_norm.weight", "d", one_more),
            Rule("mlp.gate_proj.weight", "ffn_gate.weight", "f d"),
            Rule("mlp.up_proj.weight", "ffn_up.weight", "f d"),
            Rule("mlp.down_proj.weight", "ffn_down.weight", "d f"),
            Rule("post_feedforward_layernorm.weight", "post_ffw_norm.weight", "d", one_more),
        ),
    ),
    # What sees is left out.
    ignored=r"(model\.)?(vision_tower|multi_modal_projector)\..*",
    renames=((r"^(model\.)?language_model\.(model\.)?", "model."), (r"^model\.lm_head\.", "lm_head.")),
    notes=lambda config: ["the part that sees pictures is left out"] if config.has("vision_config") else [],
)
