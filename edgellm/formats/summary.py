"""What a model is, in a line: derived from its checked header alone."""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

import msgspec

from edgellm.contracts.engine import ModelFile
from edgellm.formats.gguf_types import FILE_TYPES

_LONGEST_NAME = 100
_POOLINGS = (1, 2, 3)  # the mean, the first token, the last
_ENCODERS = frozenset(
    {"bert", "modern-bert", "neo-bert", "nomic-bert", "nomic-bert-moe", "jina-bert-v2", "jina-bert-v3"}
    | {"eurobert", "gemma-embedding", "t5encoder"}
)


class ModelSummary(msgspec.Struct, frozen=True):
    """The facts a list of models shows."""

    name: str  # the author's own title, else the file's name; printable
    architecture: str
    parameters: int  # elements over all tensors
    quantization: str  # "Q4_1", "Q4_K_M", …
    context: int  # trained context, tokens; 0 where the file does not say
    layers: int  # 0 where the file does not say
    has_chat_template: bool
    embeds: bool = False  # makes embeddings, not text


def summarise(model: ModelFile) -> ModelSummary:
    """Pure. Keys of the wrong type count as absent."""
    metadata, architecture = model.metadata, model.architecture
    return ModelSummary(
        name=_title(model),
        architecture=architecture,
        parameters=sum(math.prod(tensor.shape) for tensor in model.tensors),
        quantization=_quantization(model),
        context=_count(metadata.get(f"{architecture}.context_length")),
        layers=_count(metadata.get(f"{architecture}.block_count")),
        has_chat_template=bool(_text(metadata.get("tokenizer.chat_template"))),
        embeds=makes_embeddings(model),
    )


def makes_embeddings(model: ModelFile) -> bool:
    """Whether it is for embeddings: an encoder, or a decoder whose file says how vectors are pooled."""
    if model.architecture in _ENCODERS or model.metadata.get(f"{model.architecture}.attention.causal") is False:
        return True
    return model.metadata.get(f"{model.architecture}.pooling_type") in _POOLINGS


def _quantization(model: ModelFile) -> str:
    """The writer's label (`general.file_type`); without one, the type that holds most bytes."""
    label = FILE_TYPES.get(_count(model.metadata.get("general.file_type"), missing=-1))
    if label is not None:
        return label
    held: Counter[str] = Counter()
    for tensor in model.tensors:
        held[tensor.type] += tensor.nbytes
    return held.most_common(1)[0][0] if held else "none"


def _title(model: ModelFile) -> str:
    for given in (
        model.metadata.get("general.name"),
        model.metadata.get("general.basename"),
        model.path.stem,
    ):
        text = "".join(c for c in _text(given) if c.isprintable()).strip()
        if text:
            return text[:_LONGEST_NAME]
    return model.architecture


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""


def _count(value: Any, missing: int = 0) -> int:
    return value if type(value) is int and value >= 0 else missing
