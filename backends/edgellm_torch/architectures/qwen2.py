"""Qwen 2 and 2.5: as Llama, with biases on queries, keys and values, and halves that turn together."""

from __future__ import annotations

from edgellm_torch.architectures.plain import plain
from edgellm_torch.config import Decoder
from edgellm_torch.header import Header


def qwen2(header: Header) -> Decoder:
    return plain(header, "neox")
