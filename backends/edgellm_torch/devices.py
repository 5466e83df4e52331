"""What the engine computes on: the CPU, one GPU, or several with the layers split over them.

Torch is imported when GPUs are looked for. They are those that torch sees: CUDA_VISIBLE_DEVICES says which, and where
it is empty, the CPU is left.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from edgellm.contracts.engine import ModelFile, Placement
from edgellm.errors import LoadFailed
from edgellm_torch.config import Decoder
from edgellm_torch.costs import MIB, Loads, loads

USEFUL: Final = 512  # tokens: a model that cannot hold so much KV is of no use
_SPARED: Final = 16  # a GPU's free memory is taken but for one part in so many: libraries, what lies between tensors
_HALVINGS: Final = 40


class Device(NamedTuple):
    """`name` as torch has it, `title` as people do; `free`: bytes that the engine may take of it; 0: unknown."""

    name: str
    title: str
    free: int


class Share(NamedTuple):
    """The layers that a device computes, first to last without a gap."""

    device: Device
    layers: range


class Spread(NamedTuple):
    """Where a model goes, in the order of its layers, and why not where it was wanted."""

    shares: tuple[Share, ...]
    why: str = ""


def cpu(memory: int = 0) -> Device:
    return Device("cpu", "CPU", memory)


def gpus() -> list[Device]:
    """What torch sees, in its order."""
    import torch

    if not torch.cuda.is_available():
        return []
    found = []
    for number in range(torch.cuda.device_count()):
        free, _ = torch.cuda.mem_get_info(number)
        found.append(Device(f"cuda:{number}", torch.cuda.get_device_name(number), free - free // _SPARED))
    return found


def spread(model: ModelFile, parts: Decoder, placement: Placement, found: Sequence[Device]) -> Spread:
    """The fewest of the GPUs `found` that hold a model with all its room; all of them, with less; or the CPU.

    Raises LoadFailed where the placement wants layers on GPUs, and only some would go there.
    """
    asked, layers = placement.gpu_layers, len(parts.layers)
    if 0 < asked < layers:
        raise LoadFailed(
            f"{asked} of {layers} layers were to be on a GPU: the PyTorch engine computes a whole model there or none",
            hint=f"set gpu_layers = {layers}, or 0 to let it decide; or engine = llamacpp",
        )
    why = ""
    if found:
        shares = _on_gpus(loads(model, parts, placement), found, placement)
        if shares:
            return Spread(shares)
        room = sum(device.free for device in found) // MIB
        why = f"{model.path.name} does not fit on the GPUs here, of which {room:,} MiB are free"
    _require_none(asked, why)
    return Spread((Share(cpu(placement.memory), range(layers)),), why)


def device_for(needs: int, asked: int, found: Sequence[Device]) -> tuple[str, str]:
    """For what goes to one device: the GPU with most room, where `needs` bytes fit; else the CPU, and why not a GPU.

    Raises LoadFailed where layers were `asked` to be on a GPU, and cannot be.
    """
    if not found:
        _require_none(asked, "")
        return "cpu", ""
    roomy = max(found, key=lambda device: device.free)
    if needs <= roomy.free:
        return roomy.name, ""
    why = f"of the {needs // MIB:,} MiB that the model takes {roomy.free // MIB:,} are free on {roomy.title}"
    _require_none(asked, why)
    return "cpu", why


def split(sizes: Sequence[int], room: Sequence[int]) -> list[range]:
    """Cut layers of `sizes` into ranges for devices of `room`, so that the fullest is as little full as can be.

    One range for each device, in order; it may be empty. Where not all fits, the last one is too full.
    """
    low, high = 0.0, 1.0  # parts of the room that are filled: too little, enough
    if sum(map(len, cut := _filled(sizes, room))) < len(sizes):
        return [*cut[:-1], range(cut[-1].start, len(sizes))]
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        tried = _filled(sizes, [int(bytes_ * middle) for bytes_ in room])
        if sum(map(len, tried)) == len(sizes):
            high, cut = middle, tried
        else:
            low = middle
    return cut


def _filled(sizes: Sequence[int], room: Sequence[int]) -> list[range]:
    """As many layers to each as fit, the first ones first."""
    ranges, start = [], 0
    for limit in room:
        end, taken = start, 0
        while end < len(sizes) and taken + sizes[end] <= limit:
            taken += sizes[end]
            end += 1
        ranges.append(range(start, end))
        start = end
    return ranges


def _require_none(asked: int, why: str) -> None:
    """Raises LoadFailed where layers were `asked` to be on a GPU; `why` none can be, "" where there is no GPU."""
    if asked:
        why = why or "there is no GPU that torch can use"
        raise LoadFailed(f"gpu_layers is {asked}, and {why}", hint="set gpu_layers = 0; `edgellm doctor` shows GPUs")


def _on_gpus(needs: Loads, found: Sequence[Device], placement: Placement) -> tuple[Share, ...] | None:
    by_room = sorted(range(len(found)), key=lambda number: -found[number].free)
    least = min(USEFUL, placement.context)
    tries = [(count, placement.capacity) for count in range(1, len(found) + 1)]
    for count, tokens in [*tries, (len(found), least)]:
        devices = [found[number] for number in sorted(by_room[:count])]
        room = [device.free - needs.scratch for device in devices]
        cut = split(needs.layers(tokens), room) if count > 1 else [range(len(needs.weights))]
        if all(needs.of(part, tokens) <= limit for part, limit in zip(cut, room, strict=True)):
            return tuple(Share(device, part) for device, part in zip(devices, cut, strict=True) if part)
    return None
