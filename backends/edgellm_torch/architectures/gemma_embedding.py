"""EmbeddingGemma: Gemma 3's layers, looking both ways; and where the file has them, two matrices behind the pooling."""

from __future__ import annotations

from edgellm_torch.architectures.gemma3 import gemma3
from edgellm_torch.config import BothWays, Linear
from edgellm_torch.header import Header

_PERIOD = 6  # the last of so many layers sees everything, where the file does not say which


def gemma_embedding(header: Header) -> BothWays:
    window, layers = header.size("attention.sliding_window"), range(header.layers)
    pattern = header.value("attention.sliding_window_pattern")
    if isinstance(pattern, list) and len(pattern) >= len(layers):
        slides = [bool(pattern[n]) for n in layers]
    else:
        period = header.number("attention.sliding_window_pattern", _PERIOD)
        slides = [not period or n % period < period - 1 for n in layers]
    return BothWays(gemma3(header, [window * slide for slide in slides]), _dense(header))


def _dense(header: Header) -> tuple[Linear, ...]:
    found, width = [], header.width
    if header.has("dense_2.weight"):
        found.append(header.linear("dense_2", width, header.size("dense_2_feat_out")))
    if header.has("dense_3.weight"):
        found.append(header.linear("dense_3", found[-1].rows if found else width, width))
    return tuple(found)
