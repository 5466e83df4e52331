"""Headers with a few lies in them, for hypothesis: what a damaged or made-up file may say."""

from __future__ import annotations

import math
from typing import Any

import msgspec
from hypothesis import strategies as st

from edgellm.contracts.engine import ModelFile

VALUES = st.sampled_from(
    [0, 1, 2, 3, 7, 64, -1, 1 << 20, 1 << 40, 1.5, 0.0, -1.0, math.nan, math.inf, "", "yarn", "x", True, False, [], [1]]
) | st.lists(st.integers(0, 70), min_size=1, max_size=3)
SHAPES = st.lists(st.sampled_from([1, 2, 16, 32, 64, 128]), max_size=4).map(tuple)


@st.composite
def lies(draw: st.DrawFn, model: ModelFile) -> ModelFile:
    """The model with some keys changed or gone, and perhaps the shape or type of a tensor."""
    metadata: dict[str, Any] = dict(model.metadata)
    more = ("rope.scaling.type", "rope.scaling.factor", "rope.dimension_count", "rope.freq_base", "expert_gating_func")
    names = sorted({*(key for key in metadata if key.startswith(model.architecture)), "tokenizer.ggml.model"})
    names += [f"{model.architecture}.{name}" for name in more]
    for name in draw(st.lists(st.sampled_from(names), min_size=1, max_size=3)):
        value = draw(VALUES | st.none())
        metadata.pop(name, None)
        if value is not None:
            metadata[name] = value
    tensors = list(model.tensors)
    if draw(st.booleans()):
        index = draw(st.integers(0, len(tensors) - 1))
        if draw(st.booleans()):
            tensors[index] = msgspec.structs.replace(tensors[index], shape=draw(SHAPES))
        else:
            del tensors[index]
    return msgspec.structs.replace(model, metadata=metadata, tensors=tuple(tensors))
