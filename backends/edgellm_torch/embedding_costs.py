"""What an embedder costs in memory, from its header alone. No torch here."""

from __future__ import annotations

from typing import Final

import msgspec

from edgellm.contracts.engine import CostModel, ModelFile
from edgellm_torch import costs
from edgellm_torch.config import BothWays, Decoder, Dense, EncoderLayer
from edgellm_torch.pooling import embedding_parts

KV_TYPE: Final = "f32"  # of a decoder: it holds the texts of one call, and is no burden

# Measured, as costs.PROCESS: an encoder needs no sampler and no library for its tokenizer; attention over whole texts
# makes 4 MiB of scores at a time, and some copies on the way.
PROCESS: Final = costs.LIBRARIES + 170 * costs.MIB


def embedding_cost(model: ModelFile) -> CostModel:
    """A decoder's KV has room for one call.

    Raises LoadFailed for a model that this engine makes no embeddings with.
    """
    parts = embedding_parts(model)
    if isinstance(parts, Decoder):
        return msgspec.structs.replace(costs.cost_model(model, KV_TYPE), logits=0)
    if isinstance(parts, BothWays):
        activations = max(costs.activations(layer, parts.width) for layer in parts.decoder.layers)
    else:
        activations = max(_activations(layer, parts.width) for layer in parts.layers)
    return CostModel(
        weights=costs.weights(model),
        process=PROCESS + costs.process(model, parts.vocabulary) - costs.PROCESS,
        activations=costs.F32_BYTES * activations,
    )


def _activations(layer: EncoderLayer, width: int) -> int:
    """Numbers held at once for one token, as costs.py counts them."""
    attention, feed = layer.attention, layer.feed
    mixed = 3 * sum(linear.rows for linear in attention.inputs)
    fed = 3 * (feed.up if isinstance(feed, Dense) else feed.gate).rows
    return 2 * (4 * width + max(mixed, fed))
