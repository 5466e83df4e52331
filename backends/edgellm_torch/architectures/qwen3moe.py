"""Qwen 3 with experts: as Qwen 3, and each token goes through the few networks that its router likes best."""

from __future__ import annotations

from edgellm_torch.architectures.plain import plain
from edgellm_torch.config import Decoder
from edgellm_torch.header import Header


def qwen3moe(header: Header) -> Decoder:
    return plain(header, "neox", head_norms=True, experts=True)
