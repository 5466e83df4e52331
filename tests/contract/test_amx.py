"""Whether AMX may be used is asked of a canary process, once per build."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from edgellm_llamacpp.amx import sound
from edgellm_llamacpp.canary import tiny_model

from edgellm.contracts.engine import ENGINE_STATE
from edgellm.formats.gguf import read_model

ALIVE, DEAD = ([sys.executable, "-c", code] for code in ("pass", "import os; os.abort()"))


@pytest.fixture
def build(tmp_path: Path) -> Any:
    """A build: the folder of its libraries."""
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib" / "libggml-cpu.so").write_bytes(b"one")
    return SimpleNamespace(llama_cpp=SimpleNamespace(_lib=SimpleNamespace(_name=str(tmp_path / "lib" / "libllama.so"))))


def test_a_canary_that_lives_allows_it_and_one_that_dies_does_not(build: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(ENGINE_STATE, raising=False)
    assert sound(build, ALIVE)
    assert not sound(build, DEAD)
    assert not sound(build, ["/no/such/program"])


def test_the_answer_is_remembered_for_that_build(build: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(ENGINE_STATE, str(tmp_path / "state"))
    assert not sound(build, DEAD)
    assert not sound(build, ALIVE), "remembered"
    (tmp_path / "lib" / "libggml-cpu.so").write_bytes(b"another build")
    assert sound(build, ALIVE)
    (tmp_path / "state" / "llamacpp-amx.json").write_text("not JSON")
    assert sound(build, ALIVE)


def test_the_canarys_model_is_a_model(tmp_path: Path) -> None:
    path = tmp_path / "canary.gguf"
    path.write_bytes(tiny_model())
    model = read_model(path)
    assert model.architecture == "llama"
    assert {tensor.type for tensor in model.tensors} == {"Q4_0", "F32"}
