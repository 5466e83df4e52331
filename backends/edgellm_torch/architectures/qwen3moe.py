"""Qwen 3 with experts: as Qwen 3, and each token goes through the few networks that its router likes best."""

from __future__ import annotations

from edgellm_torch.config import Decoder, Layer
from edgellm_torch.header import Header


def qwen3moe(header: Header) -> Decoder:
    rope = header.rope("neox")
    return Decoder(
        vocabulary=header.vocabulary,
        width=header.width,
        context=header.number("context_length", 0),
        embedding=header.embedding(),
        layers=tuple(
            Layer(
                attention_norm=header.norm(f"blk.{n}.attn_norm", header.width),
                attention=header.attention(n, rope, norms=True),
                feed_norm=header.norm(f"blk.{n}.ffn_norm", header.width),
                feed=header.experts(n),
            )
            for n in range(header.layers)
        ),
        norm=header.norm("output_norm", header.width),
        output=header.output(),
    )
