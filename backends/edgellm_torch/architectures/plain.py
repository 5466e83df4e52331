"""The plain stack: norm, attention, norm, feed-forward network, layer upon layer. Most families are that."""

from __future__ import annotations

from typing import Literal

from edgellm_torch.config import Decoder, Layer
from edgellm_torch.header import Header


def plain(
    header: Header, rope: Literal["interleaved", "neox"], *, head_norms: bool = False, experts: bool = False
) -> Decoder:
    """`head_norms`: each head's query and key is normalised before it is turned. `experts`: in every layer."""
    turned = header.rope(rope)
    return Decoder(
        vocabulary=header.vocabulary,
        width=header.width,
        context=header.number("context_length", 0),
        embedding=header.embedding(),
        layers=tuple(
            Layer(
                attention_norm=header.norm(f"blk.{n}.attn_norm", header.width),
                attention=header.attention(n, turned, norms=head_norms),
                feed_norm=header.norm(f"blk.{n}.ffn_norm", header.width),
                feed=header.experts(n) if experts else header.gated(n),
            )
            for n in range(header.layers)
        ),
        norm=header.norm("output_norm", header.width),
        output=header.output(),
    )
