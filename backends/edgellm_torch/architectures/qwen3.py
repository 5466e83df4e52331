"""Qwen 3, dense: each head's query and key is normalised before it is turned."""

from __future__ import annotations

from edgellm_torch.architectures.plain import plain
from edgellm_torch.config import Decoder
from edgellm_torch.header import Header


def qwen3(header: Header) -> Decoder:
    return plain(header, "neox", head_norms=True)
