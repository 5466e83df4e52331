"""The families that this engine runs, by the name in `general.architecture`: header in, decoder or encoder out."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from edgellm.contracts.engine import ModelFile
from edgellm.errors import LoadFailed
from edgellm_torch.architectures.bert import bert, jina_bert_v2, nomic_bert
from edgellm_torch.architectures.deepseek2 import deepseek2
from edgellm_torch.architectures.gemma2 import gemma2
from edgellm_torch.architectures.gemma3 import gemma3
from edgellm_torch.architectures.gemma_embedding import gemma_embedding
from edgellm_torch.architectures.llama import llama
from edgellm_torch.architectures.qwen2 import qwen2
from edgellm_torch.architectures.qwen3 import qwen3
from edgellm_torch.architectures.qwen3moe import qwen3moe
from edgellm_torch.config import BothWays, Decoder, Encoder
from edgellm_torch.header import Header

ARCHITECTURES: Final[dict[str, Callable[[Header], Decoder]]] = {
    "deepseek2": deepseek2,
    "gemma2": gemma2,
    "gemma3": gemma3,
    "llama": llama,
    "qwen2": qwen2,
    "qwen3": qwen3,
    "qwen3moe": qwen3moe,
}
ENCODERS: Final[dict[str, Callable[[Header], Encoder | BothWays]]] = {
    "bert": bert,
    "gemma-embedding": gemma_embedding,
    "jina-bert-v2": jina_bert_v2,
    "nomic-bert": nomic_bert,
}


def decoder(model: ModelFile) -> Decoder:
    """What `model` is made of, every tensor's shape checked. Raises LoadFailed, which names what it cannot run."""
    build = ARCHITECTURES.get(model.architecture)
    if build is None:
        raise LoadFailed(
            f"this engine does not run the architecture {model.architecture}",
            hint="it runs " + ", ".join(sorted(ARCHITECTURES)) + "; llama.cpp runs many more",
        )
    return build(Header(model))
