"""How much KV room a loaded model gets: what its largest step, run once, leaves of the memory that it may take.

The largest step is one of as many tokens as may be, at the end of the longest context, with logits for as many rows as
may be. Layers of a kind take turns in the same memory, so one of each kind is run.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

import msgspec
import torch
from edgellm_kernels.pages import Ragged

from edgellm.contracts.engine import ModelFile, Needs, Placement
from edgellm.contracts.runner import SampleSpec
from edgellm.errors import InsufficientMemory
from edgellm_torch.attention import Step
from edgellm_torch.config import Decoder, Layer, linears
from edgellm_torch.costs import MIB, cost_model, group_blocks, kept, max_outputs
from edgellm_torch.devices import USEFUL, Share
from edgellm_torch.gauge import Gauge
from edgellm_torch.kv import KVMemory, table
from edgellm_torch.loader import Weights
from edgellm_torch.model import Model, Stage
from edgellm_torch.pool import BLOCK, blocks_for
from edgellm_torch.reporting import log
from edgellm_torch.sampling.chain import choose
from edgellm_torch.sampling.penalties import Draw


def fitted(model: ModelFile, whole: Model, shares: Sequence[Share], placement: Placement) -> Placement:
    """The placement, with a smaller capacity where less is left than it asks for, and no longer context than that.

    Nothing is measured where no device's memory is known. Raises InsufficientMemory where too little is left for one
    sequence of a useful length.
    """
    if not any(share.device.free for share in shares):
        return placement
    cost = cost_model(model, placement.kv_type)
    needs = cost.needs(placement.capacity, placement.max_sequences, placement.batch_tokens)
    found = measured(whole, placement, needs)
    left = [
        share.device.free - taken if share.device.free else sys.maxsize
        for share, taken in zip(shares, found, strict=True)
    ]
    capacity = capacity_within(whole.decoder, placement, [share.layers for share in shares], left)
    if capacity >= placement.capacity:
        return placement
    least = min(USEFUL, placement.context)
    told = "; ".join(
        f"of {share.device.free // MIB:,} MiB on {share.device.name} all else takes {taken // MIB:,}"
        for share, taken in zip(shares, found, strict=True)
    )
    if capacity < least:
        raise InsufficientMemory(
            f"{model.path.name} was loaded, and too little is left for keys and values of {least} tokens: {told}",
            hint="close other programs, take smaller steps (batch_tokens), or a smaller model",
        )
    log(f"KV room for {capacity:,} tokens instead of {placement.capacity:,}: {told}")
    return msgspec.structs.replace(placement, capacity=capacity, context=min(placement.context, capacity))


def measured(whole: Model, placement: Placement, needs: Needs) -> list[int]:
    """Bytes that a model without its pool takes at most, for each stage's device.

    On the CPU the process counts as a whole, and no less than was predicted of it: its vocabulary may still be on the
    way. So it is, too, where the system does not tell.
    """
    sample, kv = _sample(whole, placement)
    gauges = [Gauge(stage.device) for stage in whole.stages]
    with torch.inference_mode():
        _largest_step(sample, kv, placement)
    found = []
    pages = kv.nbytes_by(len(stage.blocks) for stage in sample.stages)
    for stage, gauge, small in zip(whole.stages, gauges, pages, strict=True):
        peak = gauge.peak()
        taken = 0 if peak is None else peak - small
        if stage.device == "cpu":
            taken = max(taken, needs.weights + needs.process + needs.activations)
        found.append(taken)
    return found


def capacity_within(parts: Decoder, placement: Placement, shares: Sequence[range], left: Sequence[int]) -> int:
    """Tokens of KV for which the blocks of every share's layers fit into the bytes `left` for it; whole blocks.

    At most the placement's capacity, rounded up; 0 where not even one block fits.
    """
    per_block = [
        [
            BLOCK * sum(kept(layer.attention, placement.kv_type) for layer in part if layer.attention.window == window)
            for window in parts.windows
        ]
        for part in (parts.layers[share.start : share.stop] for share in shares)
    ]

    def fits(blocks: int) -> bool:
        counts = group_blocks(parts, blocks * BLOCK, placement.max_sequences, placement.batch_tokens)
        return all(
            sum(count * size for count, size in zip(counts, sizes, strict=True)) <= limit
            for sizes, limit in zip(per_block, left, strict=True)
        )

    low, high = 0, blocks_for(placement.capacity) + 1  # the first fits (or is none), the second is too many
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low * BLOCK


def _sample(whole: Model, placement: Placement) -> tuple[Model, KVMemory]:
    """The model with one layer of each kind on each device, and pages for one step."""
    layers: list[Layer] = []
    stages: list[Stage] = []
    start = 0
    for stage in whole.stages:
        own = whole.decoder.layers[start : start + len(stage.blocks)]
        start += len(own)
        of_kinds = list({_kind(layer, stage.weights): layer for layer in own}.values())
        layers += of_kinds
        stages.append(Stage(stage.device, of_kinds, stage.weights))
    sample = Model(msgspec.structs.replace(whole.decoder, layers=tuple(layers)), stages)
    blocks = [blocks_for(placement.batch_tokens) + 1] * len(sample.decoder.windows)
    return sample, KVMemory(sample.decoder, blocks, placement.kv_type, sample.devices)


def _kind(layer: Layer, weights: Weights) -> tuple[object, ...]:
    """Layers of which this is equal take the same memory for a step."""
    shapes = [(part.rows, part.columns, part.stack, weights.matrices[part.weight].type) for part in linears(layer)]
    return type(layer.attention), layer.attention.window, type(layer.feed), tuple(shapes)


def _largest_step(model: Model, kv: KVMemory, placement: Placement) -> None:
    """With whatever is in the pages: the last block of a context is any block, over and over."""
    counts: list[int] = []
    while (left := placement.batch_tokens - sum(counts)) > 0:
        counts.append(min(left, placement.context))
    starts = tuple(placement.context - count for count in counts)
    blocks = blocks_for(placement.batch_tokens) + 1
    row = [number % blocks for number in range(blocks_for(placement.context))]
    ragged = Ragged(starts, tuple(counts), table([row] * len(counts), model.device))
    step = Step(ragged, ragged.positions(model.device), ragged.slots(BLOCK))
    outputs = max_outputs(placement)
    wanted = torch.arange(placement.batch_tokens - outputs, placement.batch_tokens, device=model.device)
    tokens = torch.zeros(placement.batch_tokens, dtype=torch.int64, device=model.device)
    logits = model(tokens, kv, [step] * len(model.decoder.windows), wanted)
    assert logits is not None
    choose(logits, [Draw(SampleSpec(top_p=0.9), position) for position in range(outputs)])
