"""The expected speed of a model, from its header and the memory's rate."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from edgellm.contracts.engine import ModelFile, TensorInfo
from edgellm.formats.gguf import read_model
from edgellm.placement.pace import active_bytes, memory_rate, pace, tokens_per_second


def made(metadata: dict[str, Any], **tensors: int) -> ModelFile:
    infos = tuple(TensorInfo(name.replace("__", "."), "F32", (1,), nbytes, 0) for name, nbytes in tensors.items())
    return ModelFile(Path("m"), 0, "x", metadata, infos)


def test_active_bytes() -> None:
    assert active_bytes(made({}, token_embd__weight=100, a__weight=10)) == 110  # the table is the output, too
    assert active_bytes(made({}, token_embd__weight=100, output__weight=50, a__weight=10)) == 60
    experts = {"x.expert_count": 8, "x.expert_used_count": 2}
    assert active_bytes(made(experts, output__weight=1, ffn_up_exps__weight=80, a__weight=10)) == 31
    assert active_bytes(made({"x.expert_count": 0, "x.expert_used_count": 2}, ffn_up_exps__weight=80)) == 80


@pytest.mark.parametrize(
    ("speed", "expected"), [(50, "fast, some 50"), (8, "reads, some 8.0"), (2, "slow, some 2.0"), (0.1, "very slow")]
)
def test_words(speed: float, expected: str) -> None:
    assert expected in pace(speed)


def test_this_machine(smollm2: Path) -> None:
    rate = memory_rate(2)
    assert 5e8 < rate < 1e12
    found = read_model(smollm2)
    assert 0.9 < active_bytes(found) / smollm2.stat().st_size <= 1.0
    assert tokens_per_second(found, 10e9) == pytest.approx(10e9 * 0.7 / active_bytes(found))
