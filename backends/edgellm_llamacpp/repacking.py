"""Which weights llama.cpp rearranges for the CPU it runs on, told from the CPU's flags and the library's file alone.

What is rearranged lies in memory of its own. That costs nothing more, but for an embedding that is the output too: one
copy is looked up by rows, the other multiplied, and they differ.
"""

from __future__ import annotations

import importlib.util
import os
import platform
import re
import sys
from collections.abc import Set
from functools import cache
from pathlib import Path
from typing import Final

_AMX: Final = frozenset({"Q4_0", "Q4_1", "Q8_0", "Q4_K", "Q5_K", "Q6_K", "IQ4_XS"})
_AVX2: Final = frozenset({"Q4_0", "Q4_K", "IQ4_NL", "MXFP4"})
_NEON: Final = frozenset({"Q4_0", "Q4_K", "Q5_K", "Q6_K", "Q8_0", "IQ4_NL", "MXFP4"})
_OWN: Final = frozenset({"Q4_0", "Q4_1", "Q8_0", "Q4_K", "Q5_K", "Q6_K"})  # kernels/ggml/, where the build has them
OWN_GROUP: Final = 16  # rows
_OWN_MARK: Final = b"edgellm: rows side by side"
_OWN_ATTENTION_MARK: Final = b"edgellm: a lane for each cell, F16, Q8_0 or Q4_0"
OWN_KV: Final = frozenset({"f16", "q8_0", "q4_0"})  # what it attends to
BUILT: Final = ".llama-cpp-flags"  # what tools/build_engine.py notes: flags, and last the source's fingerprint
_CHECKOUT: Final = Path(__file__).parents[2]
_GROUP: Final = 8  # rows are rearranged in groups of so many (of 4 on some, which makes no difference to a vocabulary)


def repacked(kind: str, shape: tuple[int, ...], flags: Set[str] | None = None, own: bool | None = None) -> bool:
    """Whether a matrix of this tensor type and shape is rearranged.

    `flags`, `own`: the CPU's flags and whether the build has our own kernels; found out where not given.
    """
    flags = cpu_flags() if flags is None else flags
    if len(shape) != 2 or shape[-1] % _GROUP:
        return False
    if "amx_int8" in flags and kind in _AMX:
        return True
    if "avx2" in flags and (kind in _AVX2 or (kind == "Q2_K" and "avx512f" in flags)):
        return True
    if "avx2" in flags and kind in _OWN and shape[-1] % OWN_GROUP == 0:
        return own_kernels() if own is None else own
    return "asimddp" in flags and kind in _NEON


def own_kernels() -> bool:
    """Whether the installed llama.cpp multiplies matrices with the kernels in kernels/ggml/."""
    return _contains(_OWN_MARK)


def own_attention() -> bool:
    """Whether it attends with them: to keys and values of OWN_KV."""
    return _contains(_OWN_ATTENTION_MARK)


def outdated(checkout: Path = _CHECKOUT, prefix: str = sys.prefix) -> bool:
    """Whether the installed llama.cpp was built from other changes and kernels than those in this checkout.

    tools/build_engine.py notes what it has built in `prefix`. False where nobody knows: no checkout, or others' build.
    """
    import runpy  # not above: only doctor asks

    try:
        built = (Path(prefix) / BUILT).read_text("utf-8").split()[-1]
        now = runpy.run_path(str(checkout / "tools" / "engine_source.py"))["fingerprint"]()
    except (OSError, IndexError):
        return False
    return "LLAMA_CPP_LIB_PATH" not in os.environ and bool(built != now)


@cache
def _contains(mark: bytes) -> bool:
    """Whether this stands in the installed library, which need not be loaded for that."""
    found = importlib.util.find_spec("llama_cpp")
    folders = [Path(place) / "lib" for place in (found.submodule_search_locations or ())] if found else []
    if chosen := os.environ.get("LLAMA_CPP_LIB_PATH"):
        folders = [Path(chosen)]
    files = (file for folder in folders for file in sorted(folder.glob("*ggml-cpu*")))
    try:
        return any(mark in file.read_bytes() for file in files)
    except OSError:
        return False


@cache
def cpu_flags() -> frozenset[str]:
    """Instruction sets, by the names that Linux gives them; on other systems what its kind of processor always has."""
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return frozenset({"asimddp"} if platform.machine().lower() in ("arm64", "aarch64") else {"avx2"})
    found = re.search(r"^(?:flags|Features)\s*:\s*(.+)$", text, re.MULTILINE)
    return frozenset(found[1].split()) if found else frozenset()
