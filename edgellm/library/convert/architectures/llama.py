"""Llama and what is built like it: Mistral, SmolLM, TinyLlama, Yi, DeepSeek's Llama distills."""

from __future__ import annotations

from typing import Any

from edgellm.library.convert import rope
from edgellm.library.convert.architectures import decoder
from edgellm.library.convert.config import Config
from edgellm.library.convert.rules import Architecture, Rule, layer_rules, paired

Q, K = paired("num_attention_heads"), paired("num_key_value_heads")


def _metadata(config: Config) -> dict[str, Any]:
    return decoder.metadata(config) | rope.metadata(
        config, decoder.head_size(config), kinds=("default", "linear", "yarn", "llama3")
    )


LLAMA = Architecture(
    name="llama",
    classes=("LlamaForCausalLM", "LLaMAForCausalLM", "MistralForCausalLM"),
    sizes=decoder.sizes,
    metadata=_metadata,
    rules=(
        Rule("model.embed_tokens.weight", "token_embd.weight", "v d"),
        Rule("model.norm.weight", "output_norm.weight", "d"),
        Rule("lm_head.weight", "output.weight", "v d", optional=True),
        *layer_rules(
            Rule("input_layernorm.weight", "attn_norm.weight", "d"),
            Rule("self_attn.q_proj.weight", "attn_q.weight", "q d", Q),
            Rule("self_attn.k_proj.weight", "attn_k.weight", "k d", K),
            Rule("self_attn.v_proj.weight", "attn_v.weight", "k d"),
            Rule("self_attn.o_proj.weight", "attn_output.weight", "d q"),
            Rule("self_attn.q_proj.bias", "attn_q.bias", "q", Q, optional=True),
            Rule("self_attn.k_proj.bias", "attn_k.bias", "k", K, optional=True),
            Rule("self_attn.v_proj.bias", "attn_v.bias", "k", optional=True),
            Rule("self_attn.o_proj.bias", "attn_output.bias", "d", optional=True),
            Rule("post_attention_layernorm.weight", "ffn_norm.weight", "d"),
            Rule("mlp.gate_proj.weight", "ffn_gate.weight", "f d"),
            Rule("mlp.up_proj.weight", "ffn_up.weight", "f d"),
            Rule("mlp.down_proj.weight", "ffn_down.weight", "d f"),
            Rule("mlp.gate_proj.bias", "ffn_gate.bias", "f", optional=True),
            Rule("mlp.up_proj.bias", "ffn_up.bias", "f", optional=True),
            Rule("mlp.down_proj.bias", "ffn_down.bias", "d", optional=True),
        ),
    ),
    extra=lambda config: rope.llama3_factors(config, decoder.head_size(config)),
    ignored=decoder.FREQUENCIES,
    notes=decoder.full_attention_note,
)
