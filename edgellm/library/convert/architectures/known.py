"""The architectures that can be converted, one file for each family."""

from __future__ import annotations

from edgellm.library.convert.architectures import bert, gemma, llama, phi, qwen
from edgellm.library.convert.rules import Architecture

ARCHITECTURES: tuple[Architecture, ...] = (
    llama.LLAMA,
    qwen.QWEN2,
    qwen.QWEN3,
    qwen.QWEN3_MOE,
    gemma.GEMMA3,
    phi.PHI3,
    bert.BERT,
)
