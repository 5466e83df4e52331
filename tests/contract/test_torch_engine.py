"""What the torch engine alone promises: KV types, windows in blocks, memory to the byte, failures kept in their row."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
import torch_zoo
from contract.driving import GREEDY, WARM, answer, append, prompt, step, token
from contract.engines import TINY, Engine, two_in_flight
from edgellm_kernels.blocks import BLOCKS
from edgellm_torch.costs import KV_TYPES, cost_model, group_blocks
from edgellm_torch.plugin import TorchPlugin
from edgellm_torch.runner import TorchRunner

from edgellm.contracts.engine import Placement
from edgellm.contracts.runner import PREVIOUS, Row, SampleSpec
from edgellm.errors import GenerationFailed
from edgellm.formats.gguf import read_model


@pytest.fixture
def engine(tiny_torch: Engine) -> Engine:
    return tiny_torch


@pytest.fixture(params=KV_TYPES)
def runner(engine: Engine, request: pytest.FixtureRequest) -> Iterator[TorchRunner]:
    runner = load(engine, msgspec.structs.replace(TINY, kv_type=request.param))
    yield runner
    runner.close()


def load(engine: Engine, placement: Placement = TINY) -> TorchRunner:
    runner = engine.load(placement)
    assert isinstance(runner, TorchRunner)
    return runner


def test_no_kv_type_lets_text_depend_on_chunks_company_copies_or_guesses(engine: Engine, runner: TorchRunner) -> None:
    ids = prompt(engine.tokenizer)[:90]
    expected = answer(runner, 0, ids, 8, WARM, chunk=90)
    assert answer(runner, 1, ids, 8, WARM, chunk=7) == expected
    runner.free(0)
    runner.free(1)
    append(runner, 0, 0, ids[:-1], chunk=31)
    runner.fork(0, 2, len(ids) - 1)
    parked = runner.park(0)
    runner.free(0)
    runner.unpark(parked, 3)
    row = Row(3, len(ids) - 1, ids[-1:], WARM, 0, expected[:5])
    guessed, alone, other = step(runner, row, Row(2, len(ids) - 1, ids[-1:], WARM), Row(0, 0, ids[:40]))
    assert guessed.tokens == tuple(expected[:6])
    assert alone.tokens == (expected[0],)
    assert other.tokens == ()


def test_kv_types_are_near_to_each_other(engine: Engine) -> None:
    """By the log probability of one token."""
    ids = prompt(engine.tokenizer)[:100]
    spec = SampleSpec(temperature=0.0, logprobs=0)
    found: dict[str, float] = {}
    for kv_type in KV_TYPES:
        runner = load(engine, msgspec.structs.replace(TINY, kv_type=kv_type))
        append(runner, 0, 0, ids[:-1])
        (result,) = step(runner, Row(0, len(ids) - 1, ids[-1:], spec))
        found[kv_type] = result.logprobs[0].chosen
        runner.close()
    assert found["f16"] == pytest.approx(found["f32"], abs=5e-3)
    assert found["bf16"] == pytest.approx(found["f32"], abs=5e-2)
    assert found["int8"] == pytest.approx(found["f32"], abs=5e-2)
    assert found["fp8"] == pytest.approx(found["f32"], abs=0.3)
    assert len(set(found.values())) == len(KV_TYPES), "each is stored as it says"


@pytest.mark.parametrize("kv_type", KV_TYPES)
def test_memory_is_what_was_planned_to_the_byte(engine: Engine, kv_type: str) -> None:
    for placement in (TINY, msgspec.structs.replace(TINY, capacity=1000, max_sequences=7, batch_tokens=32)):
        placement = msgspec.structs.replace(placement, kv_type=kv_type)
        cost = cost_model(engine.model, kv_type)
        needs = cost.needs(placement.capacity, placement.max_sequences, placement.batch_tokens)
        runner = load(engine, placement)
        assert needs.kv_total == runner._kv.nbytes
        assert needs.weights == runner._model.nbytes
        runner.close()


@pytest.mark.parametrize("kind", BLOCKS)
def test_weights_of_every_type_are_counted(kind: str, tmp_path: Path) -> None:
    model = read_model(torch_zoo.write(tmp_path, "llama", kind).quantised)
    runner = TorchPlugin().load(model, TINY, lambda _done: None)
    assert isinstance(runner, TorchRunner)
    assert cost_model(model, "f16").weights == runner._model.nbytes
    runner.close()


def test_capacity_fits_however_it_is_divided(engine: Engine) -> None:
    """Odd lengths, and forks in the middle of blocks."""
    runner = load(engine)
    ids = (prompt(engine.tokenizer) * 3)[:256]
    append(runner, 0, 0, ids[:37])
    runner.fork(0, 1, 35)
    runner.fork(0, 2, 21)
    append(runner, 1, 35, ids[:99], chunk=50)  # 99 and 56 tokens of their own, 37 of the first
    append(runner, 2, 21, ids[:56], chunk=9)
    append(runner, 3, 0, ids[: 256 - 37 - 99 - 56])
    runner.close()


def test_windows_take_no_more_room_than_they_see(tmp_path: Path) -> None:
    model = read_model(torch_zoo.write(tmp_path, "gemma3", "Q8_0").quantised)
    engine = Engine("torch-tiny-gemma3", TorchPlugin(), model)
    long = msgspec.structs.replace(TINY, context=500, capacity=500, max_sequences=1, batch_tokens=16)
    runner = load(engine, long)
    windowed = runner._pool.groups[1]
    assert windowed.window == 24
    assert windowed.blocks * 16 < 100
    ids = (prompt(engine.tokenizer) * 5)[:480]
    append(runner, 0, 0, ids[:-1], chunk=16)
    assert runner.reusable(0, 200) == 0
    assert runner.reusable(0, 478) == 478
    expected = token(step(runner, Row(0, 479, ids[-1:], GREEDY))[0])
    wide = load(engine, msgspec.structs.replace(long, batch_tokens=500, max_sequences=4))
    assert answer(wide, 0, ids, 1, chunk=500) == [expected]
    runner.close()
    wide.close()


def test_groups_of_layers_share_a_plan() -> None:
    class Parts:
        windows = (0, 24)

    blocks: Sequence[int] = group_blocks(Parts(), 1000, 4, 32)  # type: ignore[arg-type]
    assert blocks == [63 + 4, 8 + 8]


def test_what_is_not_a_number_stays_in_its_row(engine: Engine) -> None:
    runner = load(engine)
    ids = prompt(engine.tokenizer)[:20]
    expected = answer(runner, 1, ids, 1)
    runner.free(1)
    append(runner, 0, 0, ids[:-1])
    append(runner, 1, 0, ids[:-1])
    pages = runner._kv.pages[0]
    pages.k[runner._pool.groups[runner._kv.groups[0]].tables[0][0]] = float("nan")
    rows = [Row(sequence, len(ids) - 1, ids[-1:], GREEDY) for sequence in (0, 1)]
    broken, sound = step(runner, *rows)
    assert broken.error == "nan"
    assert broken.tokens == ()
    assert [token(sound)] == expected
    runner.close()


def test_a_row_that_took_no_number_says_so(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two in flight: the second was submitted before anyone knew that the first drew nothing."""
    runner = load(engine)
    two_in_flight(runner)
    ids = prompt(engine.tokenizer)[:20]
    expected = answer(runner, 1, ids, 2)
    runner.free(1)
    compute = type(runner._model).__call__

    def spoil(*given: Any) -> torch.Tensor | None:
        logits = compute(*given)
        assert logits is not None
        logits[0, 5] = math.nan
        return logits

    with monkeypatch.context() as patch:
        patch.setattr(type(runner._model), "__call__", spoil)
        first = runner.submit([Row(sequence, 0, ids, GREEDY) for sequence in (0, 1)])
    second = runner.submit([Row(sequence, len(ids), (PREVIOUS,), GREEDY, 1) for sequence in (0, 1)])
    for ticket, drawn in zip((first, second), expected, strict=True):
        broken, sound = runner.collect(ticket)
        assert (broken.error, broken.tokens) == ("nan", ())
        assert token(sound) == drawn
    runner.close()


def test_a_step_that_fails_leaves_the_one_in_flight_alone(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    runner = load(engine)
    two_in_flight(runner)
    ids = prompt(engine.tokenizer)[:40]
    expected = answer(runner, 0, ids, 3)
    runner.free(0)
    first = runner.submit([Row(0, 0, ids, GREEDY)])

    def fail(*_: Any) -> torch.Tensor:
        raise RuntimeError("out of memory")

    with monkeypatch.context() as patch:
        patch.setattr(type(runner._model), "__call__", fail)
        with pytest.raises(GenerationFailed):
            runner.submit([Row(0, len(ids), (PREVIOUS,), GREEDY, 1), Row(1, 0, ids[:9])])
    second = runner.submit([Row(0, len(ids), (PREVIOUS,), GREEDY, 1)])
    assert [token(runner.collect(ticket)[0]) for ticket in (first, second)] == expected[:2]
    assert answer(runner, 0, [*ids, *expected[:2]], 1, held=len(ids) + 1) == expected[2:]
    runner.close()


def test_a_step_that_fails_leaves_every_sequence_as_it_was(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    runner = load(engine)
    ids = prompt(engine.tokenizer)[:40]
    expected = answer(runner, 0, ids, 2)
    runner.free(0)
    append(runner, 0, 0, ids[:-1])
    used = [group.free for group in runner._pool.groups]

    def fail(*_: Any) -> torch.Tensor:
        raise RuntimeError("DefaultCPUAllocator: can't allocate memory\nmore of it")

    with monkeypatch.context() as patch:
        patch.setattr(type(runner._model), "__call__", fail)
        with pytest.raises(GenerationFailed, match="can't allocate memory") as caught:
            runner.submit([Row(0, len(ids) - 1, ids[-1:], GREEDY), Row(1, 0, ids)])
        assert "more of it" not in caught.value.message
    assert [group.free for group in runner._pool.groups] == used
    assert answer(runner, 0, ids, 2, held=len(ids) - 1) == expected
    runner.close()


def test_a_device_that_failed_ends_the_process(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever was computed on it is lost, and it takes nothing more: the worker dies, and another is started."""
    runner = load(engine)

    def fail(*_: Any) -> torch.Tensor:
        raise torch.AcceleratorError("an illegal memory access was encountered")

    monkeypatch.setattr(type(runner._model), "__call__", fail)
    with pytest.raises(torch.AcceleratorError):
        runner.submit([Row(0, 0, [1, 2], GREEDY)])
    runner.close()


def test_drafts_bring_log_probabilities_and_a_memory_along(engine: Engine) -> None:
    """Mirostat remembers from token to token, also through guesses that come true."""
    runner = load(engine)
    ids = prompt(engine.tokenizer)[:30]
    spec = SampleSpec(mirostat=2, mirostat_tau=3.0, seed=5, logprobs=2)
    append(runner, 0, 0, ids[:-1])
    carry, tokens, told = 0.0, [ids[-1]], []
    for position in range(6):
        (result,) = step(runner, Row(0, len(ids) - 1 + position, tokens[-1:], spec, position, carry=carry))
        carry = result.carry
        tokens.append(token(result))
        told.append(result.logprobs[0])
    runner.free(0)
    append(runner, 0, 0, ids[:-1])
    (together,) = step(runner, Row(0, len(ids) - 1, ids[-1:], spec, 0, tokens[1:6]))
    assert together.tokens == tuple(tokens[1:])
    assert together.carry == carry
    assert together.logprobs == tuple(told)
    runner.close()
