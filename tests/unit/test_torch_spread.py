"""Which device computes which layers, and how much KV room is left there."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import pytest
import torch
import torch_zoo
from edgellm_kernels.pages import Ragged
from edgellm_torch import devices
from edgellm_torch.architectures import decoder
from edgellm_torch.attention import Step
from edgellm_torch.costs import MIB, cost_model, group_blocks, loads
from edgellm_torch.devices import Device, split, spread
from edgellm_torch.kv import KVMemory
from edgellm_torch.plugin import TorchPlugin
from edgellm_torch.room import capacity_within
from hypothesis import given
from hypothesis import strategies as st

from edgellm.contracts.engine import Available, ModelFile, Placement
from edgellm.errors import LoadFailed
from edgellm.formats.gguf import read_model

ROOM = Placement(context=512, capacity=1024, max_sequences=4, batch_tokens=64, threads=1, threads_batch=1)


def gpu(number: int, mib: float) -> Device:
    return Device(f"cuda:{number}", "a GPU", int(mib * MIB))


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> ModelFile:
    """Eight layers of 0.6 MiB, and some more for keys and values."""
    dims = torch_zoo.Dims(layers=4)  # it makes two of each
    return read_model(torch_zoo.write(tmp_path_factory.mktemp("tiny"), "gemma3", "Q8_0", dims=dims).quantised)


LAYERS = st.lists(st.integers(1, 1000), min_size=1, max_size=8)
ROOMS = st.lists(st.integers(1, 4000), min_size=1, max_size=4)


@given(LAYERS, ROOMS)
def test_layers_are_split_as_evenly_as_can_be(sizes: list[int], room: list[int]) -> None:
    cut = split(sizes, room)
    assert [index for part in cut for index in part] == list(range(len(sizes))), "in order, each once"
    assert len(cut) == len(room)
    taken = [sum(sizes[part.start : part.stop]) for part in cut]
    if any(held > limit for held, limit in zip(taken, room, strict=True)):
        return
    fullest = max(held / limit for held, limit in zip(taken, room, strict=True))
    assert fullest <= best(tuple(sizes), tuple(room)) + 1 / min(room) + 1e-9  # limits are whole numbers


def best(sizes: Sequence[int], room: Sequence[int]) -> float:
    """How full the fullest must be, by trying every way."""
    if len(room) == 1:
        return sum(sizes) / room[0]
    return min(max(sum(sizes[:count]) / room[0], best(sizes[count:], room[1:])) for count in range(len(sizes) + 1))


def test_a_model_goes_where_it_fits(model: ModelFile) -> None:
    parts = decoder(model)
    whole = loads(model, parts, ROOM)

    def holding(number: int, part: float) -> Device:
        """With room for so much of the model, and for a step."""
        return gpu(number, (part * whole.of(range(8), ROOM.capacity) + whole.scratch) / MIB)

    def placed(*found: Device) -> list[tuple[str, int]]:
        shares = spread(model, parts, ROOM, found).shares
        assert [index for share in shares for index in share.layers] == list(range(len(parts.layers)))
        return [(share.device.name, len(share.layers)) for share in shares]

    assert placed(gpu(0, 1000)) == [("cuda:0", 8)]
    assert placed(gpu(0, 20), gpu(1, 1000)) == [("cuda:1", 8)], "the fewest, those with most room"
    (first, some), (second, others) = placed(holding(0, 0.8), holding(1, 0.8))
    assert (first, second) == ("cuda:0", "cuda:1")
    assert some
    assert others
    (_, few), (_, many) = placed(holding(0, 0.5), holding(1, 0.9))
    assert few < many
    assert placed(gpu(0, 1), gpu(1, 2)) == [("cpu", 8)]
    assert "does not fit on the GPUs here" in spread(model, parts, ROOM, [gpu(0, 1)]).why
    assert spread(model, parts, ROOM, []).why == ""


def test_less_room_than_asked_for_is_better_than_none(model: ModelFile) -> None:
    long = msgspec.structs.replace(ROOM, capacity=1 << 20)
    parts = decoder(model)
    whole = loads(model, parts, long)
    free = (whole.of(range(8), 2048) + whole.scratch) / MIB
    assert [share.device.name for share in spread(model, parts, long, [gpu(0, free)]).shares] == ["cuda:0"]


def test_half_a_model_on_a_gpu_is_refused(model: ModelFile) -> None:
    parts = decoder(model)
    for asked, found, words in (
        (3, [gpu(0, 1000)], "3 of 8 layers"),
        (8, [], "there is no GPU"),
        (99, [gpu(0, 1)], "does not fit on the GPUs"),
    ):
        with pytest.raises(LoadFailed, match=words) as caught:
            spread(model, parts, msgspec.structs.replace(ROOM, gpu_layers=asked), found)
        assert "gpu_layers" in str(caught.value.hint)
    wanted = msgspec.structs.replace(ROOM, gpu_layers=8)
    assert spread(model, parts, wanted, [gpu(0, 1000)]).shares[0].device.name == "cuda:0"


def test_what_layers_take_is_what_the_model_takes(model: ModelFile) -> None:
    parts = decoder(model)
    cost, found = cost_model(model, "f16"), loads(model, parts, ROOM)
    assert sum(found.weights) + sum(found.ends) - found.shared == cost.weights
    assert found.of(range(8), 0) == cost.weights
    assert found.of(range(3), 0) + found.of(range(3, 8), 0) == cost.weights + found.shared > cost.weights
    assert sum(found.kv) == sum(kind.per_token for kind in cost.kv)


@pytest.mark.parametrize("kind", ["f16", "int8"])
def test_pages_lie_on_the_device_of_their_layer(model: ModelFile, kind: str) -> None:
    """On devices that hold no numbers, so that a room of many GiB can be looked at."""
    parts = decoder(model)
    room = msgspec.structs.replace(ROOM, capacity=1 << 20, kv_type=kind)
    blocks = group_blocks(parts, room.capacity, room.max_sequences, room.batch_tokens)
    kv = KVMemory(parts, blocks, kind, ["meta"] * 8)
    assert kv.nbytes == cost_model(model, kind).needs(room.capacity, room.max_sequences, room.batch_tokens).kv_total
    assert {tensor.device.type for pages in kv.pages for tensor in pages.tensors()} == {"meta"}
    left = [sum(pages.nbytes for pages in part) for part in (kv.pages[:3], kv.pages[3:])]
    assert capacity_within(parts, room, [range(3), range(3, 8)], left) == room.capacity
    assert capacity_within(parts, room, [range(3), range(3, 8)], [left[0] - 1, left[1]]) == room.capacity - 16
    assert capacity_within(parts, room, [range(3), range(3, 8)], [left[0], left[1] // 2]) < room.capacity * 0.6
    assert capacity_within(parts, room, [range(3), range(3, 8)], [left[0], 1000]) == 0


def test_a_step_goes_to_another_device_whole() -> None:
    ragged = Ragged((5, 0), (2, 3), torch.tensor([[9, 4], [2, 3]]))
    step = Step(ragged, ragged.positions(), ragged.slots(16))
    assert step.to("cpu") is step
    there = step.to("meta")
    assert there.ragged.tables.shape == (2, 2)
    assert {there.positions.device.type, there.slots.device.type, there.ragged.tables.device.type} == {"meta"}
    assert (there.ragged.starts, there.ragged.counts) == ((5, 0), (2, 3))


def test_the_engine_says_what_it_would_compute_on(monkeypatch: pytest.MonkeyPatch) -> None:
    plugin = TorchPlugin()
    monkeypatch.setattr(devices, "gpus", list)
    state = plugin.probe()
    assert isinstance(state, Available)
    assert state.detail == "CPU, reference kernels: exact, and slow"
    assert plugin.kernels().device == "cpu"
    monkeypatch.setattr(devices, "gpus", lambda: [gpu(0, 40_000), gpu(1, 8000)])
    state = plugin.probe()
    assert isinstance(state, Available)
    assert state.detail.startswith("cuda:0: a GPU, 40,000 MiB free; cuda:1: a GPU, 8,000 MiB free")
    report = plugin.kernels()
    assert report.device == "cuda:0"
    assert {choice.implementation for choice in report.choices} == {"reference"}
