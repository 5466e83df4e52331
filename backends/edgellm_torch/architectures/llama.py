"""Llama, and what is built like it: Mistral, SmolLM, TinyLlama …; with experts, Mixtral.

Queries and keys lie in the file so that neighbouring numbers turn together. Mistral's files name a window, which
llama.cpp does not use for this architecture, and neither do we: the same file gives the same text.
"""

from __future__ import annotations

from edgellm_torch.config import Decoder, Layer
from edgellm_torch.header import Header


def llama(header: Header) -> Decoder:
    rope = header.rope("interleaved")
    return Decoder(
        vocabulary=header.vocabulary,
        width=header.width,
        context=header.number("context_length", 0),
        embedding=header.embedding(),
        layers=tuple(
            Layer(
                attention_norm=header.norm(f"blk.{n}.attn_norm", header.width),
                attention=header.attention(n, rope),
                feed_norm=header.norm(f"blk.{n}.ffn_norm", header.width),
                feed=header.experts(n) if header.number("expert_count", 0) else header.gated(n),
            )
            for n in range(header.layers)
        ),
        norm=header.norm("output_norm", header.width),
        output=header.output(),
    )
