"""What a file says of the embeddings that are made with it. No torch here."""

from __future__ import annotations

from typing import Final, Literal

from edgellm.contracts.embedding import FOR_EMBEDDINGS, NOT_POOLED
from edgellm.contracts.engine import ModelFile
from edgellm.errors import LoadFailed
from edgellm_torch.architectures import ENCODERS, decoder
from edgellm_torch.config import Attention, BothWays, Decoder, Encoder, Latent
from edgellm_torch.header import Header

Pooling = Literal["mean", "first", "last"]  # of a text's tokens
_POOLINGS: Final[dict[object, Pooling]] = {1: "mean", 2: "first", 3: "last"}


def pooling(model: ModelFile) -> Pooling:
    """How the vectors of a text's tokens become one. Raises LoadFailed where the file does not say, or says ranks."""
    said = model.metadata.get(f"{model.architecture}.pooling_type")
    if type(said) is not int or said not in _POOLINGS:
        raise LoadFailed(NOT_POOLED, hint=FOR_EMBEDDINGS)
    return _POOLINGS[said]


def embedding_parts(model: ModelFile) -> Decoder | Encoder | BothWays:
    """What `model` is made of, every tensor's shape checked. Raises LoadFailed, which names what it cannot run."""
    pooling(model)
    if (encoder := ENCODERS.get(model.architecture)) is not None:
        return encoder(Header(model))
    parts = decoder(model)
    if model.metadata.get(f"{model.architecture}.attention.causal") is not False:
        return parts
    if not all(_simple(layer.attention) for layer in parts.layers):
        raise LoadFailed(
            f"tokens of this {model.architecture} model see what follows them, through windows, caps or latents",
            hint="llama.cpp may run it: engine = llamacpp",
        )
    return BothWays(parts)


def _simple(attention: Attention | Latent) -> bool:
    return isinstance(attention, Attention) and not attention.window and not attention.soft_cap
