"""What a file says of the embeddings that are made with it. No torch here."""

from __future__ import annotations

from typing import Final, Literal

from edgellm.contracts.embedding import FOR_EMBEDDINGS, NOT_POOLED
from edgellm.contracts.engine import ModelFile
from edgellm.errors import LoadFailed
from edgellm_torch.architectures import ENCODERS, decoder
from edgellm_torch.config import Decoder, Encoder
from edgellm_torch.header import Header

Pooling = Literal["mean", "first", "last"]  # of a text's tokens
_POOLINGS: Final[dict[object, Pooling]] = {1: "mean", 2: "first", 3: "last"}


def pooling(model: ModelFile) -> Pooling:
    """How the vectors of a text's tokens become one. Raises LoadFailed where the file does not say, or says ranks."""
    said = model.metadata.get(f"{model.architecture}.pooling_type")
    if type(said) is not int or said not in _POOLINGS:
        raise LoadFailed(NOT_POOLED, hint=FOR_EMBEDDINGS)
    return _POOLINGS[said]


def embedding_parts(model: ModelFile) -> Decoder | Encoder:
    """What `model` is made of, every tensor's shape checked. Raises LoadFailed, which names what it cannot run."""
    pooling(model)
    if (encoder := ENCODERS.get(model.architecture)) is not None:
        return encoder(Header(model))
    if model.metadata.get(f"{model.architecture}.attention.causal") is False:
        raise LoadFailed(
            f"in this {model.architecture} model tokens see what follows them, which this engine computes for "
            + ", ".join(sorted(ENCODERS)),
            hint="llama.cpp may run it: engine = llamacpp",
        )
    return decoder(model)
