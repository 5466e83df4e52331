"""Gemma 2: every other layer looks back a window, scores and logits are capped, norms stand on both sides."""

from __future__ import annotations

import math

from edgellm_torch.config import Decoder, Layer
from edgellm_torch.header import Header

_LAYERS_27B = 46  # where queries are scaled by the width's share instead of the head's size
_ATTENTION_CAP, _LOGITS_CAP = 50.0, 30.0  # where the file does not say


def gemma2(header: Header) -> Decoder:
    windows = header.windows()
    rope = header.rope("neox")
    local = header.rope("neox", base="rope.freq_base_swa")
    scale = 1 / math.sqrt(header.share() if header.layers == _LAYERS_27B else header.head_size())
    cap = header.real("attn_logit_softcapping", _ATTENTION_CAP)
    return Decoder(
        vocabulary=header.vocabulary,
        width=header.width,
        context=header.number("context_length", 0),
        embedding=header.embedding(),
        embedding_scale=math.sqrt(header.width),
        layers=tuple(
            Layer(
                attention_norm=header.norm(f"blk.{n}.attn_norm", header.width),
                attention=header.attention(
                    n, local if windows[n] else rope, window=windows[n], scale=scale, soft_cap=cap
                ),
                attention_post_norm=header.norm(f"blk.{n}.post_attention_norm", header.width),
                feed_norm=header.norm(f"blk.{n}.ffn_norm", header.width),
                feed=header.gated(n, "gelu"),
                feed_post_norm=header.norm(f"blk.{n}.post_ffw_norm", header.width),
            )
            for n in range(header.layers)
        ),
        norm=header.norm("output_norm", header.width),
        output=header.embedding(),
        soft_cap=header.real("final_logit_softcapping", _LOGITS_CAP),
    )
