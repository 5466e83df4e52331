"""Llama, and what is built like it: Mistral, SmolLM, TinyLlama …; with experts, Mixtral.

Queries and keys lie in the file so that neighbouring numbers turn together. Mistral's files name a window, which
llama.cpp does not use for this architecture, and neither do we: the same file gives the same text.
"""

from __future__ import annotations

from edgellm_torch.architectures.plain import plain
from edgellm_torch.config import Decoder
from edgellm_torch.header import Header


def llama(header: Header) -> Decoder:
    return plain(header, "interleaved", experts=bool(header.number("expert_count", 0)))
