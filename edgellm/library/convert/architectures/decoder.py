"""What the decoders have in common: sizes and metadata of a llama-like transformer."""

from __future__ import annotations

from typing import Any

from edgellm.library.convert.config import Config

# Left over in old checkpoints: computed anew by every engine.
FREQUENCIES = r".*\.rotary_emb\.inv_freq"


def head_size(config: Config) -> int:
    return config.whole("head_dim", config.whole("hidden_size") // config.whole("num_attention_heads"))


def sizes(config: Config) -> dict[str, int]:
    """d model, q and k width of all query and key-value heads, h one head, f feed-forward, v vocabulary."""
    head, heads = head_size(config), config.whole("num_attention_heads")
    return {
        "layers": config.whole("num_hidden_layers"),
        "d": config.whole("hidden_size"),
        "q": heads * head,
        "k": config.whole("num_key_value_heads", heads) * head,
        "h": head,
        "f": config.whole("intermediate_size"),
        "v": config.whole("vocab_size"),
    }


def metadata(config: Config) -> dict[str, Any]:
    """All but the positions."""
    heads = config.whole("num_attention_heads")
    return {
        "block_count": config.whole("num_hidden_layers"),
        "context_length": config.whole("max_position_embeddings"),
        "embedding_length": config.whole("hidden_size"),
        "feed_forward_length": config.whole("intermediate_size"),
        "attention.head_count": heads,
        "attention.head_count_kv": config.whole("num_key_value_heads", heads),
        "attention.key_length": head_size(config),
        "attention.value_length": head_size(config),
        "attention.layer_norm_rms_epsilon": config.number("rms_norm_eps", 1e-6),
        "vocab_size": config.whole("vocab_size"),
    }


def full_attention_note(config: Config) -> list[str]:
    """For architectures whose windows the engine does not compute."""
    window = config.get("sliding_window")
    if window is None or config.get("use_sliding_window") is False or type(window) is not int:
        return []
    if window >= config.whole("max_position_embeddings"):
        return []
    return [f"the original looks back {window:,} tokens in some layers; here every layer sees all of the text"]
