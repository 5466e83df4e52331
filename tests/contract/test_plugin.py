"""What every EnginePlugin promises."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest
from contract.driving import GREEDY, step, token
from contract.engines import TINY, Engine

from edgellm.contracts.engine import Available
from edgellm.contracts.runner import Row
from edgellm.errors import LoadFailed


def test_it_is_available_and_says_what(engine: Engine) -> None:
    state = engine.plugin.probe()
    assert isinstance(state, Available)
    assert state.version


def test_it_supports_its_model_and_nothing_without_weights(engine: Engine) -> None:
    assert engine.plugin.supports(engine.model) is None
    assert engine.plugin.supports(msgspec.structs.replace(engine.model, tensors=()))


def test_costs_come_from_the_header(engine: Engine) -> None:
    for kv_type in engine.plugin.kv_types:
        cost = engine.plugin.cost_model(engine.model, kv_type)
        small, large = cost.needs(1024, 4, 64), cost.needs(2048, 4, 64)
        assert small.weights == large.weights >= sum(tensor.nbytes for tensor in engine.model.tensors)
        assert small.process > 0
        assert 0 < small.kv_total < large.kv_total
        assert small.total == small.weights + small.kv_total + small.activations + small.process


def test_progress_rises_to_one(engine: Engine) -> None:
    seen: list[float] = []
    engine.plugin.load(engine.model, TINY, seen.append).close()
    assert seen == sorted(seen)
    assert seen[-1] == 1.0
    assert all(0 <= done <= 1 for done in seen)


def test_progress_may_stop_the_load(engine: Engine) -> None:
    class Stop(Exception):
        pass

    def stop(_done: float) -> None:
        raise Stop

    with pytest.raises(Stop):
        engine.plugin.load(engine.model, TINY, stop)


@pytest.mark.parametrize("content", [b"", b"GGML not a model", b"GGUF\x03\x00\x00\x00" + b"\xff" * 64, None])
def test_what_is_no_model_fails_with_words(engine: Engine, tmp_path: Path, content: bytes | None) -> None:
    if engine.name.startswith("fake") and content and content.startswith(b"GGUF"):
        pytest.skip("the fake looks no further")
    path = tmp_path / "broken.gguf"
    if content is not None:
        path.write_bytes(content)
    model = msgspec.structs.replace(engine.model, path=path)
    with pytest.raises(LoadFailed) as caught:
        engine.plugin.load(model, TINY, lambda _done: None)
    assert "broken.gguf" in caught.value.message
    assert caught.value.hint


ROOMS: list[tuple[dict[str, Any], str]] = [
    ({"kv_type": "q9"}, "no KV type q9"),
    ({"capacity": 0}, "capacity is 0"),
    ({"threads": 0}, "threads is 0"),
    ({"max_sequences": 0}, "max_sequences is 0"),
    ({"batch_tokens": 3}, "batch_tokens is 3"),
]


@pytest.mark.parametrize(("fields", "words"), ROOMS)
def test_rooms_that_make_no_sense_are_refused(engine: Engine, fields: dict[str, Any], words: str) -> None:
    with pytest.raises(LoadFailed, match=words):
        engine.plugin.load(engine.model, msgspec.structs.replace(TINY, **fields), lambda _done: None)


def test_two_runners_do_not_share_memory(engine: Engine) -> None:
    first, second = engine.load(TINY), engine.load(TINY)
    drawn = token(step(first, Row(0, 0, [1, 2, 3], GREEDY))[0])
    assert token(step(second, Row(0, 0, [1, 2, 3], GREEDY))[0]) == drawn
    first.close()
    assert token(step(second, Row(1, 0, [1, 2, 3], GREEDY))[0]) == drawn
    second.close()
