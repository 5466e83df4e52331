"""Which models' attention our kernel takes, and what `exact` makes of those that llama.cpp's takes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch_zoo
from contract.engines import PLACEMENT, Engine, open_engine
from edgellm_llamacpp.exactness import EXACT_MICRO_BATCH, ordinary
from edgellm_llamacpp.native import library

from edgellm.contracts.engine import ModelFile, TensorInfo

HEADS: dict[str, Any] = {"embedding_length": 1024, "attention.head_count": 16}


def model(architecture: str, tensors: tuple[TensorInfo, ...] = (), **keys: Any) -> ModelFile:
    metadata = {f"{architecture}.{key}": value for key, value in (HEADS | keys).items()}
    return ModelFile(Path("x.gguf"), 0, architecture, metadata, tensors)


@pytest.mark.parametrize(
    ("architecture", "keys", "expected"),
    [
        ("llama", {}, True),
        ("llama", {"attention.head_count": [16, 8]}, True),
        ("llama", {"attention.key_length": 80, "attention.value_length": 80}, True),
        ("llama", {"attention.key_length": 72, "attention.value_length": 72}, False),
        ("llama", {"attention.key_length": 64, "attention.value_length": 40}, False),
        ("llama", {"embedding_length": 24 * 16}, False),
        ("gemma2", {}, False),
        ("bloom", {}, False),
        ("mpt", {"attention.max_alibi_bias": 8.0}, False),
        ("mpt", {"attention.max_alibi_bias": 0.0}, True),
    ],
)
def test_ordinary_attention(architecture: str, keys: dict[str, Any], expected: bool) -> None:
    assert ordinary(model(architecture, **keys)) is expected


def test_sinks_are_not_ordinary() -> None:
    sinks = TensorInfo("blk.0.attn_sinks.weight", "F32", (64,), 256, 0)
    assert not ordinary(model("llama", (sinks,)))


def steps(engine: Engine, **change: Any) -> int:
    """The rows that llama.cpp computes at once."""
    runner: Any = engine.load(msgspec.structs.replace(PLACEMENT, **change))
    try:
        return int(library().api.llama_n_ubatch(runner._context.pointer))
    finally:
        runner.close()


def test_exact_takes_small_steps_where_llama_cpp_attends(tmp_path: Path, smollm2: Path) -> None:
    """Its tiles of 64 rows round otherwise: of Gemma 2's capped scores, and of KV types that ours does not take."""
    gemma2 = open_engine("llamacpp-smollm2", torch_zoo.write(tmp_path, "gemma2", "Q4_0").quantised)
    assert steps(gemma2, exact=True) == EXACT_MICRO_BATCH
    assert steps(gemma2) > EXACT_MICRO_BATCH
    assert steps(open_engine("llamacpp-smollm2", smollm2), exact=True, kv_type="bf16") == EXACT_MICRO_BATCH
