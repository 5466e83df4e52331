"""Layers on several devices, and rooms that memory does not allow. Devices that are all the CPU take the same ways."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import msgspec
import numpy as np
import pytest
import torch
import torch_oracle
from contract.driving import WARM, answer, append, prompt, step
from contract.engines import TINY, Engine
from edgellm_torch import gauge, room
from edgellm_torch.costs import MIB, cost_model
from edgellm_torch.devices import Share, cpu
from edgellm_torch.load import load
from edgellm_torch.runner import TorchRunner

from edgellm.contracts.engine import Placement
from edgellm.contracts.runner import Row
from edgellm.errors import InsufficientMemory

ROOM = msgspec.structs.replace(TINY, threads=1, threads_batch=1)


@pytest.fixture
def engine(tiny_torch: Engine) -> Engine:
    return tiny_torch


def layers(engine: Engine) -> int:
    return int(engine.model.metadata[f"{engine.model.architecture}.block_count"])


def split(engine: Engine, placement: Placement, *cuts: int, free: Sequence[int] = (0, 0, 0)) -> TorchRunner:
    """A runner whose layers are cut before these."""
    parts = [range(start, end) for start, end in pairwise([0, *cuts, layers(engine)])]
    shares = [Share(cpu(memory), part) for memory, part in zip(free, parts, strict=False)]
    return load(engine.model, placement, lambda _done: None, shares)


@pytest.mark.parametrize("cuts", [(1,), (1, 2)])
def test_split_layers_give_the_same_logits_to_the_bit(engine: Engine, cuts: tuple[int, ...]) -> None:
    heard: list[torch_oracle.Logits] = []
    for runner in (split(engine, ROOM), split(engine, ROOM, *cuts)):
        listening = runner._model = torch_oracle.Listening(runner._model)  # type: ignore[assignment]
        ids = prompt(engine.tokenizer)[:90]
        append(runner, 0, 0, ids[:-1], chunk=31)
        runner.fork(0, 1, 69)  # in the middle of a block, which is copied
        parked = runner.park(0)
        runner.free(0)
        runner.unpark(parked, 2)
        step(runner, Row(2, 89, ids[-1:], WARM), Row(1, 69, ids[:7], WARM))
        heard.append(np.concatenate(listening.heard))
        runner.close()
    assert np.array_equal(heard[0], heard[1])


def test_every_share_has_its_own_weights_and_pages(engine: Engine) -> None:
    runner = split(engine, ROOM, 1)
    first, second = runner._model.stages
    both = first.weights.matrices.keys() & second.weights.matrices.keys()
    assert both <= {"token_embd.weight"}, "which is the output, too"
    names = {name for stage in (first, second) for name in (*stage.weights.matrices, *stage.weights.vectors)}
    assert names == {tensor.name for tensor in engine.model.tensors}
    assert len(first.blocks) == 1
    assert len(runner._kv.pages) == len(first.blocks) + len(second.blocks)
    runner.close()


def test_progress_of_shares_adds_up(engine: Engine) -> None:
    told: list[float] = []
    shares = [Share(cpu(), range(1)), Share(cpu(), range(1, layers(engine)))]
    load(engine.model, ROOM, told.append, shares).close()
    assert told == sorted(told)
    assert told[-1] == 1.0
    assert any(0.3 < done < 0.6 for done in told)


def taken(monkeypatch: pytest.MonkeyPatch, *found: int) -> None:
    monkeypatch.setattr(room, "measured", lambda *_: list(found))


def test_the_pool_gets_what_the_measured_step_leaves(
    engine: Engine, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    long = msgspec.structs.replace(ROOM, context=8000, capacity=16_000, batch_tokens=64)
    whole = split(engine, long)
    kv = whole._kv.nbytes
    assert whole.info.capacity == 16_000
    whole.close()
    taken(monkeypatch, 350 * MIB)
    enough = split(engine, long, free=[350 * MIB + kv])
    assert enough.info == whole.info
    enough.close()
    assert "KV room" not in capsys.readouterr().err
    less = split(engine, long, free=[350 * MIB + kv // 3])
    assert 4000 < less.info.capacity < 16_000 / 3 + 16
    assert less.info.capacity % 16 == 0
    assert less.info.context == less.info.capacity, "no longer than what there is room for"
    assert less._kv.nbytes <= kv // 3
    told = capsys.readouterr().err
    assert f"{less.info.capacity:,} tokens instead of 16,000" in told
    assert "on cpu all else takes 350" in told
    expected = answer(split(engine, ROOM), 0, prompt(engine.tokenizer)[:40], 3)
    assert answer(less, 0, prompt(engine.tokenizer)[:40], 3) == expected
    less.close()


def test_the_fullest_device_decides(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    long = msgspec.structs.replace(ROOM, context=8000, capacity=16_000, batch_tokens=64)
    whole = split(engine, long, 1)
    second = sum(pages.nbytes for pages in whole._kv.pages[1:])
    whole.close()
    taken(monkeypatch, 11 * MIB, 22 * MIB)
    runner = split(engine, long, 1, free=[1 << 40, 22 * MIB + second // 2])
    assert 7000 < runner.info.capacity < 8016
    assert sum(pages.nbytes for pages in runner._kv.pages[1:]) <= second // 2
    runner.close()


def test_too_little_for_one_sequence_is_said_with_figures(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    taken(monkeypatch, 350 * MIB)
    with pytest.raises(InsufficientMemory, match=r"tokens: of 350 MiB on cpu all else takes 350"):
        split(engine, ROOM, free=[350 * MIB])


def test_what_is_taken_stays_within_what_was_given(engine: Engine) -> None:
    """Measured for real, with the process that the tests run in."""
    big = msgspec.structs.replace(ROOM, context=20_000, capacity=4_000_000, batch_tokens=256)
    needs = cost_model(engine.model, "f16").needs(512, 4, 256)
    before = gauge._resident("VmRSS")
    if before is None:
        pytest.skip("this system does not tell how much memory a process takes")
    memory = max(before, needs.total) + 200 * MIB
    runner = load(engine.model, msgspec.structs.replace(big, memory=memory), lambda _done: None)
    assert 512 < runner.info.capacity < 4_000_000
    assert runner._kv.nbytes > 50 * MIB
    watched = gauge.Gauge("cpu")
    append(runner, 0, 0, (prompt(engine.tokenizer) * 9)[:256], chunk=256)
    peak = watched.peak()
    assert peak is not None
    assert peak < 1.02 * memory
    runner.close()


def test_the_step_that_is_measured_is_the_largest(engine: Engine) -> None:
    """All tokens, at the end of the context, with all the rows of logits that there may be; one layer of each kind."""
    placement = msgspec.structs.replace(ROOM, context=200, capacity=400, batch_tokens=256)
    runner = split(engine, placement)
    sample, kv = room._sample(runner._model, placement)
    assert len(sample.decoder.layers) == 2, "one that sees all and one with a window; one with experts and one without"
    listening = torch_oracle.Listening(sample)
    seen: list[torch.Tensor] = []

    class Watching:
        decoder, device = sample.decoder, sample.device

        def __call__(self, tokens: torch.Tensor, kv: object, steps: Sequence[object], wanted: torch.Tensor) -> object:
            seen.extend((steps[0].positions, wanted))  # type: ignore[attr-defined]
            return listening(tokens, kv, steps, wanted)

    room._largest_step(Watching(), kv, placement)  # type: ignore[arg-type]
    positions, wanted = seen
    assert positions.tolist() == [*range(200), *range(144, 200)]
    assert wanted.tolist() == list(range(256 - runner.info.max_outputs, 256))
    assert np.isfinite(listening.heard[0]).all()
    runner.close()


def test_a_device_of_unknown_memory_takes_what_was_planned(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(room, "measured", None)  # nobody asks
    split(engine, ROOM).close()


def test_where_the_system_does_not_tell_the_prediction_counts(
    engine: Engine, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(gauge, "_CLEAR", tmp_path / "no" / "such")
    runner = split(engine, ROOM)
    needs = cost_model(engine.model, "f16").needs(256, 4, 128)
    assert room.measured(runner._model, ROOM, needs) == [needs.total - needs.kv_total]
    runner.close()
