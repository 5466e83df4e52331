"""What a model larger than memory would be like: bytes per token from the header, the rate from the disk."""

from __future__ import annotations

from pathlib import Path

import pytest
import zoo

from edgellm.formats.gguf import read_model
from edgellm.placement import disk


def test_of_experts_only_those_in_use_are_read(tmp_path: Path) -> None:
    model = read_model(zoo.write(tmp_path, "qwen3moe"))  # 2 of 8 experts, an output of its own
    experts = sum(tensor.nbytes for tensor in model.tensors if "_exps." in tensor.name)
    embedding = next(tensor for tensor in model.tensors if tensor.name == "token_embd.weight")
    others = sum(tensor.nbytes for tensor in model.tensors) - experts - embedding.nbytes
    assert disk.touched_per_token(model) == others + experts // 4 + embedding.nbytes // embedding.shape[-1]


def test_an_embedding_that_is_the_output_is_read_whole(tmp_path: Path) -> None:
    model = read_model(zoo.write(tmp_path, "qwen3"))
    assert disk.touched_per_token(model) == sum(tensor.nbytes for tensor in model.tensors)


def test_speed_lies_between_all_and_only_what_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = read_model(zoo.write(tmp_path, "qwen3"))
    whole = sum(tensor.nbytes for tensor in model.tensors)
    monkeypatch.setattr(disk, "read_rate", lambda path: 10.0 * whole)
    speed = disk.disk_speed(model, whole // 2)
    assert speed is not None
    assert speed.slowest == pytest.approx(10)
    assert speed.fastest == pytest.approx(20, rel=1e-3)
    monkeypatch.setattr(disk, "read_rate", lambda path: None)
    assert disk.disk_speed(model, 1) is None


def test_the_rate_is_measured_or_not_told(tmp_path: Path) -> None:
    path = tmp_path / "data"
    path.write_bytes(b"x" * (9 << 20))
    rate = disk.read_rate(path, sample=8 << 20)
    assert rate is None or rate > 0
    assert disk.read_rate(tmp_path / "absent") is None
    (tmp_path / "empty").write_bytes(b"")
    assert disk.read_rate(tmp_path / "empty") is None
