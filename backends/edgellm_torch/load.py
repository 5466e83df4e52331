"""Puts a runner together: decoder, weights, pool and KV memory, in the room that a placement gives."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import torch
from edgellm_kernels.invariance import rows_exact
from edgellm_kernels.staging import Staging

from edgellm.contracts.engine import ModelFile, Placement
from edgellm.errors import LoadFailed
from edgellm_torch.architectures import decoder
from edgellm_torch.config import Decoder
from edgellm_torch.costs import KV_TYPES, MIB, group_blocks
from edgellm_torch.devices import Share, gpus, spread
from edgellm_torch.kv import KVMemory
from edgellm_torch.loader import load as load_weights
from edgellm_torch.model import Model, Stage
from edgellm_torch.pool import Pool
from edgellm_torch.reporting import loading, log
from edgellm_torch.room import fitted
from edgellm_torch.runner import TorchRunner

_STAGED = 16 * MIB  # for each thread that loads, on the way to a GPU


def load(
    model: ModelFile,
    placement: Placement,
    progress: Callable[[float], None],
    shares: Sequence[Share] | None = None,
) -> TorchRunner:
    """On the devices of `shares`; None: on what is here. Raises LoadFailed; InsufficientMemory with what is short."""
    check(placement)
    parts = decoder(model)
    torch.set_num_threads(placement.threads)
    if shares is None:
        shares, why = spread(model, parts, placement, gpus())
        if why:
            log(f"on the CPU: {why}")
    with loading(model, "a shorter context or a smaller model"):
        whole = _model(model, parts, placement, shares, lambda done: progress(0.95 * done))
        placement = fitted(model, whole, shares, placement)
        blocks = group_blocks(parts, placement.capacity, placement.max_sequences, placement.batch_tokens)
        kv = KVMemory(parts, blocks, placement.kv_type, whole.devices)
    progress(1.0)
    pool = Pool(list(zip(blocks, parts.windows, strict=True)), placement.max_sequences)
    return TorchRunner(whole, pool, kv, placement)


def _model(
    model: ModelFile, parts: Decoder, placement: Placement, shares: Sequence[Share], progress: Callable[[float], None]
) -> Model:
    """Weights on their devices, one after the other."""
    stages: list[Stage] = []

    def report(done: float) -> None:
        progress((len(stages) + done) / len(shares))

    for share in shares:
        layers = parts.layers[share.layers.start : share.layers.stop]
        ends = (parts.embedding,) * (share is shares[0]), (parts.norm, parts.output) * (share is shares[-1])
        device = share.device.name
        weights = load_weights(model, (layers, *ends), placement.threads, report, device, staging(device))
        rows_exact(weights.matrices.values())  # measured now, and not in the first step
        try:
            stages.append(Stage(device, layers, weights))
        except ValueError as error:  # a number that the header's checks let through
            raise LoadFailed(f"{model.path.name} cannot be run: {error}", hint="pull the model again") from error
    return Model(parts, stages)


def staging(device: str) -> Callable[[], Staging] | None:
    """What makes a thread's way to a device; None for the CPU, where weights are."""
    return partial(Staging, _STAGED, locked=True) if device.startswith("cuda") else None


def check(placement: Placement) -> None:
    """Raises LoadFailed for a room that cannot be had here."""
    placement.check("the PyTorch engine", KV_TYPES)
    if placement.spills:
        raise LoadFailed(
            "the PyTorch engine holds all weights in memory, and these do not fit",
            hint="take a smaller model, or engine = llamacpp, which reads them from disk",
        )
