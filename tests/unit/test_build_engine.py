"""What the compiler of the llama.cpp engine is told, by CPU and compiler."""

from __future__ import annotations

import importlib
import io
import re
import shutil
import subprocess
import sys
import threading
from pathlib import Path
from types import ModuleType

import pytest
from edgellm_llamacpp.repacking import BUILT, outdated

SAPPHIRE_RAPIDS = "fpu sse2 avx2 avx512f avx512_fp16 amx_tile amx_int8"


TOOLS = Path(__file__).parents[2] / "tools"
ATTEND = """void ggml_compute_forward_flash_attn_ext(
        const ggml_compute_params * params,
        ggml_tensor * dst) {
"""
SPLIT = "const bool use_split_kv_path = !use_ref && (neq1 == 1);\n"
CHOICE = "const ggml::cpu::tensor_traits * ggml_repack_get_optimal_repack_type(const struct ggml_tensor * cur) {\n"


@pytest.fixture
def build(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(TOOLS))
    return importlib.import_module("build_engine")


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """As much of llama.cpp's source as is changed."""
    cpu = tmp_path / "vendor/llama.cpp/ggml/src/ggml-cpu"
    cpu.mkdir(parents=True)
    (cpu / "ops.cpp").write_text(f"{SPLIT}{ATTEND}    rest\n}}\n")
    (cpu / "repack.cpp").write_text(f"before\nstatic {CHOICE}    rest\n}}\n")
    return tmp_path


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


def test_the_source_is_changed_in_its_places(build: ModuleType, source: Path) -> None:
    cpu = source / build.engine_source.CPU
    assert build.engine_source.change(source) == []
    code = (cpu / "ops.cpp").read_text()
    assert code.startswith("const bool use_split_kv_path = false && !use_ref && (neq1 == 1);\n#include")
    ours = "    if (edgellm_attention(params, dst)) {\n        return;\n    }\n"
    assert code.endswith(f"{ATTEND}{ours}    rest\n}}\n")
    code = (cpu / "repack.cpp").read_text()
    assert code.startswith('before\n#include "edgellm/rows.h"\n\nstatic const')
    assert code.endswith(
        "cur) {\n    if (const auto own = edgellm_traits(cur)) {\n        return own;\n    }\n    rest\n}\n"
    )
    copied = {file.name: file.read_bytes() for file in (cpu / "edgellm").iterdir()}
    assert copied == {file.name: file.read_bytes() for file in (TOOLS.parent / "kernels/ggml").glob("*.h")}


@pytest.mark.parametrize("name", ["ops.cpp", "repack.cpp"])
@pytest.mark.parametrize("code", [None, "int main() {}\n"])
def test_a_source_that_looks_otherwise_stays_as_it_is(
    build: ModuleType, source: Path, name: str, code: str | None
) -> None:
    file = source / build.engine_source.CPU / name
    file.unlink()
    if code is not None:
        file.write_text(code)
    left = build.engine_source.change(source)
    assert len(left) == (2 if name == "ops.cpp" else 1)
    assert all(("attention" if name == "ops.cpp" else "matrices") in reason for reason in left)
    assert not file.exists() or file.read_text() == code


def test_what_does_not_compile_is_compiled_without_our_changes(
    build: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tried = []

    def compiled(folder: Path, work: Path, *, changed: bool) -> None:
        tried.append(changed)
        if changed:
            raise subprocess.CalledProcessError(1, ["pip"])
        (folder / "made.whl").touch()

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(build, "compile_to", compiled)
    assert build.wheel("anything").name == "made.whl"
    assert tried == [True, False]
    assert "without" in capsys.readouterr().out


NINJA = """rule CXX_COMPILER__ggml
build src/ggml.c.o: C_COMPILER__ggml /source/ggml.c || order
build src/ops.cpp.o: CXX_COMPILER__ggml /source/ops.cpp
build src/libggml.so: CXX_LINKER src/ggml.c.o src/ops.cpp.o
"""


def test_how_far_it_is(build: ModuleType, tmp_path: Path) -> None:
    assert build.how_far(tmp_path / "not yet") == ""
    (tmp_path / "build.ninja").write_text(NINJA)
    assert build.how_far(tmp_path) == ", 0 of 2 files"
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "ops.cpp.o").touch()
    (tmp_path / "src" / "ops.cpp.o.d").touch()
    assert build.how_far(tmp_path) == ", 1 of 2 files"


@pytest.mark.parametrize("terminal", [False, True])
def test_it_says_that_it_goes_on_compiling(
    build: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, source: Path, terminal: bool
) -> None:
    class Screen(io.StringIO):
        def __init__(self) -> None:
            super().__init__()
            self.told = threading.Event()

        def isatty(self) -> bool:
            return terminal

        def write(self, text: str) -> int:
            count = super().write(text)
            if "of 2 files" in text:
                self.told.set()
            return count

    screen, work = Screen(), tmp_path / "work"
    given: list[str] = []

    def pip(*arguments: str, **environment: str) -> None:
        given.extend(arguments)
        (work / "build").mkdir()
        (work / "build" / "build.ninja").write_text(NINJA)
        assert screen.told.wait(60)
        raise KeyboardInterrupt

    monkeypatch.setattr(build, "unpacked", lambda folder: source)
    monkeypatch.setattr(build, "pip", pip)
    monkeypatch.setattr(build, "REDRAW_S", 0.01)
    monkeypatch.setattr(build, "LINE_S", 0.01)
    monkeypatch.setattr(sys, "stdout", screen)
    with pytest.raises(KeyboardInterrupt):
        build.compile_to(tmp_path / "made", work, changed=False)
    assert f"--config-settings=build-dir={work / 'build'}" in given
    shown = screen.getvalue()
    assert re.search(r"compiling: \d:\d\d, 0 of 2 files", shown)
    assert ("\r" in shown, "\n" in shown) == (terminal, not terminal)
    assert not terminal or shown.endswith("\r"), "the line is cleared away"


def test_half_a_wheel_is_made_anew(build: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Stopped while pip copies the wheel, as by Ctrl+C or a full disk: nothing of it is in the cache."""

    def stopped(folder: Path, work: Path, *, changed: bool) -> None:
        (folder / "made.whl").write_text("half")
        raise KeyboardInterrupt

    def compiled(folder: Path, work: Path, *, changed: bool) -> None:
        (folder / "made.whl").write_text("whole")

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(build, "compile_to", stopped)
    with pytest.raises(KeyboardInterrupt):
        build.wheel("anything")
    monkeypatch.setattr(build, "compile_to", compiled)
    assert build.wheel("anything").read_text() == "whole"
    monkeypatch.setattr(build, "compile_to", stopped)
    assert build.wheel("anything").read_text() == "whole"


def test_what_was_stopped_while_it_was_installed_is_installed_again(
    build: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    marker, calls = tmp_path / "marker", list[str]()

    def pip(*arguments: str, **environment: str) -> None:
        calls.append(arguments[0])
        raise KeyboardInterrupt

    monkeypatch.setattr(build, "MARKER", marker)
    monkeypatch.setattr(build, "wheel", lambda wanted: tmp_path / "made.whl")
    monkeypatch.setattr(build, "pip", pip)
    monkeypatch.setattr(build, "installed", lambda: "0.3.36")
    monkeypatch.setattr(build, "flags", lambda: "-DOTHER=ON")
    marker.write_text("what was there before")
    with pytest.raises(KeyboardInterrupt):
        build.main()
    assert not marker.exists()
    monkeypatch.setattr(build, "flags", lambda: "")  # back to what is half gone
    with pytest.raises(KeyboardInterrupt):
        build.main()
    assert calls == ["install", "install"]


def test_what_is_built_is_noted_as_doctor_reads_it(
    build: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    assert Path(sys.prefix) / BUILT == build.MARKER
    monkeypatch.setattr(build, "MARKER", tmp_path / BUILT)
    monkeypatch.setattr(build, "wheel", lambda wanted: tmp_path / "made.whl")
    monkeypatch.setattr(build, "pip", lambda *arguments: None)
    monkeypatch.setattr(build, "flags", lambda: "-DCMAKE_C_FLAGS='-mno-avx512fp16'")
    build.main()
    monkeypatch.delenv("LLAMA_CPP_LIB_PATH", raising=False)
    assert not outdated(TOOLS.parent, str(tmp_path))
    monkeypatch.setattr(build.engine_source, "fingerprint", lambda: "another")
    build.main()
    assert outdated(TOOLS.parent, str(tmp_path))


def test_another_kernel_is_another_build(build: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    before = build.engine_source.fingerprint()
    assert before == build.engine_source.fingerprint()
    (tmp_path / "rows.h").write_text("// other")
    monkeypatch.setattr(build.engine_source, "KERNELS", tmp_path)
    assert build.engine_source.fingerprint() != before
