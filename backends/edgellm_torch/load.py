"""Puts a runner together: decoder, weights, pool and KV memory, in the room that a placement gives."""

from __future__ import annotations

from collections.abc import Callable

import torch
from edgellm_kernels.invariance import rows_exact

from edgellm.contracts.engine import ModelFile, Placement
from edgellm.errors import InsufficientMemory, LoadFailed
from edgellm_torch.architectures import decoder
from edgellm_torch.costs import KV_TYPES, group_blocks
from edgellm_torch.kv import KVMemory
from edgellm_torch.loader import load as load_weights
from edgellm_torch.model import Model
from edgellm_torch.pool import Pool
from edgellm_torch.runner import TorchRunner


def load(model: ModelFile, placement: Placement, progress: Callable[[float], None]) -> TorchRunner:
    """Raises LoadFailed, and InsufficientMemory where torch gets no more."""
    check(placement)
    parts = decoder(model)
    torch.set_num_threads(placement.threads)
    try:
        weights = load_weights(model, parts, placement.threads, lambda done: progress(0.95 * done))
        blocks = group_blocks(parts, placement.capacity, placement.max_sequences, placement.batch_tokens)
        pool = Pool(list(zip(blocks, parts.windows, strict=True)), placement.max_sequences)
        kv = KVMemory(parts, blocks, placement.kv_type)
    except (MemoryError, RuntimeError) as error:
        why = (str(error) or "torch gets no more").splitlines()[0]
        raise InsufficientMemory(
            f"{model.path.name} does not fit in memory: {why}",
            hint="close other programs, or take a shorter context or a smaller model",
        ) from error
    rows_exact(weights.matrices.values())  # measured now, and not in the first step
    try:
        whole = Model(parts, weights)
    except ValueError as error:  # a number that the header's checks let through
        raise LoadFailed(f"{model.path.name} cannot be run: {error}", hint="pull the model again") from error
    progress(1.0)
    return TorchRunner(whole, pool, kv, placement)


def check(placement: Placement) -> None:
    """Raises LoadFailed for a room that makes no sense."""
    if placement.kv_type not in KV_TYPES:
        raise LoadFailed(f"the torch engine has no KV type {placement.kv_type}", hint="one of " + ", ".join(KV_TYPES))
    if placement.gpu_layers:
        raise LoadFailed("the torch engine has no GPU kernels yet", hint="set gpu_layers = 0, or engine = llamacpp")
    for name in ("context", "capacity", "batch_tokens", "threads", "threads_batch", "max_sequences"):
        if getattr(placement, name) < 1:
            raise LoadFailed(f"{name} is {getattr(placement, name)}; it must be at least 1")
    if placement.batch_tokens < placement.max_sequences:
        raise LoadFailed(
            f"batch_tokens is {placement.batch_tokens}, less than one for each of {placement.max_sequences} sequences",
            hint="raise batch_tokens, or lower max_sequences",
        )
