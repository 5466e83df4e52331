"""What the compiler of the llama.cpp engine is told, by CPU and compiler."""

from __future__ import annotations

import importlib.util
import shutil
from pathlib import Path
from types import ModuleType

import pytest

SAPPHIRE_RAPIDS = "fpu sse2 avx2 avx512f avx512_fp16 amx_tile amx_int8"


@pytest.fixture
def build() -> ModuleType:
    spec = importlib.util.spec_from_file_location(
        "build_engine", Path(__file__).parents[2] / "tools" / "build_engine.py"
    )
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    ("features", "compiler", "known", "expected"),
    [
        ("fpu sse2 avx2", "g++ 12", True, ""),
        ("fpu avx512f amx_int8", "g++ 12", True, "-fno-tree-dse -fno-dse"),
        ("fpu avx512f amx_int8", "clang version 18", True, ""),
        ("fpu avx512f avx512_fp16", "g++ 12", True, "-mno-avx512fp16"),
        ("fpu avx512f avx512_fp16", "g++ 11", False, ""),
        (SAPPHIRE_RAPIDS, "g++ 12", True, "-fno-tree-dse -fno-dse -mno-avx512fp16"),
    ],
)
def test_flags(
    build: ModuleType, monkeypatch: pytest.MonkeyPatch, features: str, compiler: str, known: bool, expected: str
) -> None:
    monkeypatch.setattr(build, "cpu_features", lambda: features)
    monkeypatch.setattr(build, "compiler", lambda: compiler)
    monkeypatch.setattr(build, "understood", lambda flag: known)
    assert build.compiler_flags() == expected


@pytest.mark.skipif(not shutil.which("c++"), reason="no compiler here")
def test_what_the_compiler_understands(build: ModuleType) -> None:
    assert build.understood("-O2")
    assert not build.understood("-mno-such-feature-was-ever-made")


def test_the_users_own_flags_stay(build: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CMAKE_ARGS", "-DGGML_BLAS=ON")
    monkeypatch.setattr(build.platform, "system", lambda: "Linux")
    monkeypatch.setattr(build, "compiler_flags", lambda: "-mno-avx512fp16")
    assert build.flags().startswith("-DGGML_BLAS=ON -DCMAKE_C_FLAGS='-mno-avx512fp16'")
    monkeypatch.setattr(build, "compiler_flags", lambda: "")
    assert build.flags() == "-DGGML_BLAS=ON"
