"""Phi 3, 3.5 and 4: q, k and v in one matrix, gate and up in another, LongRoPE."""

from __future__ import annotations

from typing import Any

from edgellm.library.convert import rope
from edgellm.library.convert.architectures import decoder
from edgellm.library.convert.config import Config
from edgellm.library.convert.rules import Architecture, Rule, layer_rules

KINDS = ("default", "longrope", "su")


def _metadata(config: Config) -> dict[str, Any]:
    found = decoder.metadata(config) | rope.metadata(config, decoder.head_size(config), kinds=KINDS)
    found.setdefault("rope.scaling.original_context_length", config.whole("max_position_embeddings"))
    # Nought stands for Phi 4, which has no windows; the engine computes none for the others either.
    return found | {"attention.sliding_window": config.whole("sliding_window", 0, least=0)}


PHI3 = Architecture(
    name="phi3",
    classes=("Phi3ForCausalLM",),
    sizes=decoder.sizes,
    metadata=_metadata,
    rules=(
        Rule("model.embed_tokens.weight", "token_embd.weight", "v d"),
        Rule("model.norm.weight", "output_norm.weight", "d"),
        Rule("lm_head.weight", "output.weight", "v d", optional=True),
        *layer_rules(
            Rule("input_layernorm.weight", "attn_norm.weight", "d"),
            Rule("self_attn.qkv_proj.weight", "attn_qkv.weight", "q+2k d"),
            Rule("self_attn.o_proj.weight", "attn_output.weight", "d q"),
            Rule("post_attention_layernorm.weight", "ffn_norm.weight", "d"),
            Rule("mlp.gate_up_proj.weight", "ffn_up.weight", "2f d"),
            Rule("mlp.down_proj.weight", "ffn_down.weight", "d f"),
        ),
    ),
    extra=lambda config: rope.longrope_factors(config, _metadata(config)["rope.dimension_count"]),
    ignored=decoder.FREQUENCIES,
    notes=decoder.full_attention_note,
)
