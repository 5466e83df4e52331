"""Gemma 3: most layers look back a window and turn by angles of their own; heads are normalised instead of capped."""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec

from edgellm_torch.config import Decoder, Layer
from edgellm_torch.header import Header

_LAYERS_27B = 62  # where queries are scaled by the width's share instead of the head's size
_LOCAL_BASE = 10_000.0


def gemma3(header: Header, windows: Sequence[int] | None = None) -> Decoder:
    """`windows` of its layers; None: as the header of a Gemma 3 says."""
    windows = header.windows() if windows is None else windows
    rope = header.rope("neox")
    # Scaling stretches what sees everything; a window is as short as ever.
    local = msgspec.structs.replace(
        rope, base=header.real("rope.freq_base_swa", _LOCAL_BASE), scaling="none", factor=1.0
    )
    scale = 1 / math.sqrt(header.share() if header.layers == _LAYERS_27B else header.head_size())
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
                    n, local if windows[n] else rope, norms=True, window=windows[n], scale=scale
                ),
                attention_post_norm=header.norm(f"blk.{n}.post_attention_norm", header.width),
                feed_norm=header.norm(f"blk.{n}.ffn_norm", header.width),
                feed=header.gated(n, "gelu"),
                feed_post_norm=header.norm(f"blk.{n}.post_ffw_norm", header.width),
            )
            for n in range(header.layers)
        ),
        norm=header.norm("output_norm", header.width),
        output=header.output(),
        soft_cap=header.real("final_logit_softcapping", 0.0),
    )
