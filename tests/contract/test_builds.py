"""What a build of llama.cpp can do is asked of a canary process, once per build and question."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from edgellm_llamacpp import repacking
from edgellm_llamacpp.builds import ask
from edgellm_llamacpp.canary import tiny_model
from edgellm_llamacpp.plugin import LlamaCppPlugin
from edgellm_llamacpp.repacking import BUILT, outdated

from edgellm.contracts.engine import ENGINE_STATE, Available
from edgellm.formats.gguf import read_model

ALIVE, DEAD = ([sys.executable, "-c", code] for code in ("print('well')", "import os; os.abort()"))


@pytest.fixture
def build(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A build: the folder of its libraries. Answers are kept in `state`."""
    monkeypatch.setenv(ENGINE_STATE, str(tmp_path / "state"))
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib" / "libggml-cpu.so").write_bytes(b"one")
    return SimpleNamespace(llama_cpp=SimpleNamespace(_lib=SimpleNamespace(_name=str(tmp_path / "lib" / "libllama.so"))))


def test_a_canary_that_lives_answers_and_one_that_dies_does_not(build: Any) -> None:
    assert ask(build, "a", command=ALIVE) == "well"
    assert ask(build, "b", command=DEAD) is None
    assert ask(build, "c", command=["/no/such/program"]) is None


def test_the_answer_is_remembered_for_that_build(build: Any, tmp_path: Path) -> None:
    assert ask(build, "a", command=DEAD) is None
    assert ask(build, "a", command=ALIVE) is None, "remembered"
    assert ask(build, "a", "more", command=ALIVE) == "well", "another question"
    (tmp_path / "lib" / "libggml-cpu.so").write_bytes(b"another build")
    assert ask(build, "a", command=ALIVE) == "well"
    (tmp_path / "state" / "llamacpp-build.json").write_text("not JSON")
    assert ask(build, "a", command=ALIVE) == "well"


@pytest.mark.parametrize("kind", ["Q4_0", "Q4_K", "F16", "F32"])
def test_the_canarys_model_is_a_model(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "canary.gguf"
    path.write_bytes(tiny_model(kind))
    model = read_model(path)
    assert model.architecture == "llama"
    assert {tensor.type for tensor in model.tensors} == {kind, "F32"}


@pytest.mark.parametrize(
    ("flags", "own", "hinted"), [({"avx2"}, False, True), ({"avx2"}, True, False), ({"neon"}, False, False)]
)
def test_a_build_without_our_kernels_is_named(
    monkeypatch: pytest.MonkeyPatch, flags: set[str], own: bool, hinted: bool
) -> None:
    monkeypatch.setattr(repacking, "cpu_flags", lambda: flags)
    monkeypatch.setattr(repacking, "own_kernels", lambda: own)
    monkeypatch.setattr(repacking, "outdated", lambda: False)
    found = LlamaCppPlugin().probe()
    assert isinstance(found, Available)
    assert ("tools/build_engine.py" in found.hint) is hinted


def test_a_build_of_other_kernels_than_those_here_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tool = tmp_path / "tools" / "engine_source.py"
    assert not outdated(tmp_path, str(tmp_path)), "no checkout, and nothing noted"
    tool.parent.mkdir()
    tool.write_text("def fingerprint():\n    return 'new'\n")
    assert not outdated(tmp_path, str(tmp_path)), "a build by others"
    noted = tmp_path / BUILT
    noted.write_text("-DCMAKE_C_FLAGS='-mno-avx512fp16' new")
    assert not outdated(tmp_path, str(tmp_path))
    noted.write_text("-DCMAKE_C_FLAGS='-mno-avx512fp16' old")
    assert outdated(tmp_path, str(tmp_path))
    monkeypatch.setenv("LLAMA_CPP_LIB_PATH", "/elsewhere")
    assert not outdated(tmp_path, str(tmp_path))


def test_doctor_names_a_build_of_other_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(repacking, "cpu_flags", lambda: {"neon"})
    monkeypatch.setattr(repacking, "outdated", lambda: True)
    found = LlamaCppPlugin().probe()
    assert isinstance(found, Available)
    assert "`make setup`" in found.hint
