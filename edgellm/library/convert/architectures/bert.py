"""BERT as a maker of embeddings: all-MiniLM, BGE, E5, GTE and the like."""

from __future__ import annotations

from typing import Any

from edgellm.library.convert.config import Config
from edgellm.library.convert.rules import Architecture, Rule, layer_rules


def _sizes(config: Config) -> dict[str, int]:
    return {
        "layers": config.whole("num_hidden_layers"),
        "d": config.whole("hidden_size"),
        "f": config.whole("intermediate_size"),
        "v": config.whole("vocab_size"),
        "p": config.whole("max_position_embeddings"),
        "t": config.whole("type_vocab_size", 2),
    }


def _metadata(config: Config) -> dict[str, Any]:
    if config.text("hidden_act", "gelu") != "gelu":
        config.bad("hidden_act", "the engine computes gelu", "look for another model")
    if config.text("position_embedding_type", "absolute") != "absolute":
        config.bad("position_embedding_type", "the engine knows absolute positions", "look for another model")
    return {
        "block_count": config.whole("num_hidden_layers"),
        "context_length": config.whole("max_position_embeddings"),
        "embedding_length": config.whole("hidden_size"),
        "feed_forward_length": config.whole("intermediate_size"),
        "attention.head_count": config.whole("num_attention_heads"),
        "attention.layer_norm_epsilon": config.number("layer_norm_eps", 1e-12),
        "attention.causal": False,
        "vocab_size": config.whole("vocab_size"),
    }


BERT = Architecture(
    name="bert",
    classes=("BertModel", "BertForMaskedLM", "BertForPreTraining"),
    sizes=_sizes,
    metadata=_metadata,
    rules=(
        Rule("embeddings.word_embeddings.weight", "token_embd.weight", "v d"),
        Rule("embeddings.position_embeddings.weight", "position_embd.weight", "p d", exact=True),
        Rule("embeddings.token_type_embeddings.weight", "token_types.weight", "t d", exact=True),
        Rule("embeddings.LayerNorm.weight", "token_embd_norm.weight", "d"),
        Rule("embeddings.LayerNorm.bias", "token_embd_norm.bias", "d"),
        *layer_rules(
            Rule("attention.self.query.weight", "attn_q.weight", "d d"),
            Rule("attention.self.query.bias", "attn_q.bias", "d"),
            Rule("attention.self.key.weight", "attn_k.weight", "d d"),
            Rule("attention.self.key.bias", "attn_k.bias", "d"),
            Rule("attention.self.value.weight", "attn_v.weight", "d d"),
            Rule("attention.self.value.bias", "attn_v.bias", "d"),
            Rule("attention.output.dense.weight", "attn_output.weight", "d d"),
            Rule("attention.output.dense.bias", "attn_output.bias", "d"),
            Rule("attention.output.LayerNorm.weight", "attn_output_norm.weight", "d"),
            Rule("attention.output.LayerNorm.bias", "attn_output_norm.bias", "d"),
            Rule("intermediate.dense.weight", "ffn_up.weight", "f d"),
            Rule("intermediate.dense.bias", "ffn_up.bias", "f"),
            Rule("output.dense.weight", "ffn_down.weight", "d f"),
            Rule("output.dense.bias", "ffn_down.bias", "d"),
            Rule("output.LayerNorm.weight", "layer_output_norm.weight", "d"),
            Rule("output.LayerNorm.bias", "layer_output_norm.bias", "d"),
            source="encoder.layer.{}.",
        ),
    ),
    # Heads for guessing words; the pooler, which sentence embeddings do not use.
    ignored=r"embeddings\.position_ids|pooler\..*|cls\..*",
    renames=((r"^bert\.", ""), (r"\.gamma$", ".weight"), (r"\.beta$", ".bias")),
    embeds=True,
)
