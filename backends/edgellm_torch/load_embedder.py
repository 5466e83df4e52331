"""Puts an embedder together: model, weights, what belongs around a text, in the room that a placement gives.

All of it goes to one device: such models are small.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from edgellm_kernels.invariance import rows_exact

from edgellm.contracts.embedding import EmbedderInfo
from edgellm.contracts.engine import ModelFile, Placement
from edgellm.errors import LoadFailed
from edgellm_torch.both_ways import BothWaysModel
from edgellm_torch.config import BothWays, Decoder, Encoder
from edgellm_torch.devices import device_for, gpus
from edgellm_torch.embedding import DecoderStates, States, TorchEmbedder
from edgellm_torch.embedding_costs import embedding_cost
from edgellm_torch.encoder import EncoderModel
from edgellm_torch.load import check, staging
from edgellm_torch.loader import Weights
from edgellm_torch.loader import load as load_weights
from edgellm_torch.model import Model, Stage
from edgellm_torch.pooling import embedding_parts, pooling
from edgellm_torch.reporting import loading, log
from edgellm_torch.tokenizer import frame


def load_embedder(model: ModelFile, placement: Placement, progress: Callable[[float], None]) -> TorchEmbedder:
    """Raises LoadFailed, and InsufficientMemory where torch gets no more."""
    check(placement)
    parts = embedding_parts(model)
    torch.set_num_threads(placement.threads)
    before, after = frame(model)
    needs = embedding_cost(model).needs(placement.capacity, placement.max_sequences, placement.batch_tokens)
    device, why = device_for(needs.total - needs.process, placement.gpu_layers, gpus())
    if why:
        log(f"on the CPU: {why}")
    try:
        with loading(model, "a smaller model"):
            weights = load_weights(
                model, parts, placement.threads, lambda done: progress(0.95 * done), device, staging(device)
            )
            states = _states(parts, weights, placement, device)
    except ValueError as error:  # a number that the header's checks let through
        raise LoadFailed(f"{model.path.name} cannot be run: {error}", hint="pull the model again") from error
    rows_exact(weights.matrices.values())  # measured now, and not in the first call
    progress(1.0)
    info = EmbedderInfo(
        engine="torch",
        context=_context(parts, placement),
        dimensions=parts.width,
        batch_tokens=placement.batch_tokens,
        batch_texts=placement.max_sequences,
        before=before,
        after=after,
    )
    return TorchEmbedder(states, pooling(model), info, parts.vocabulary)


def _states(parts: Decoder | Encoder | BothWays, weights: Weights, placement: Placement, device: str) -> States:
    if isinstance(parts, Encoder):
        return EncoderModel(parts, weights, device)
    if isinstance(parts, BothWays):
        return BothWaysModel(parts, weights, device)
    return DecoderStates(
        Model(parts, [Stage(device, parts.layers, weights)]), placement.batch_tokens, placement.max_sequences
    )


def _context(parts: Decoder | Encoder | BothWays, placement: Placement) -> int:
    """No more than there are learned positions."""
    if isinstance(parts, Encoder) and parts.positions is not None:
        return min(placement.context, parts.context)
    return placement.context
