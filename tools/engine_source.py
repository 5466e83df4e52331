"""What edgellm changes in llama.cpp before it is compiled. Where the source looks otherwise, it stays as it is.

- One row attends like several (`NEVER_SPLIT`): a step of one row cuts long attention into a piece per thread and adds
  the pieces up, which rounds otherwise than steps of several rows do.
- Where an x86 CPU has the instructions, our own kernels (`kernels/ggml/`) multiply matrices and attend.
"""

from __future__ import annotations

import hashlib
import shutil
from pathlib import Path

KERNELS = Path(__file__).parent.parent / "kernels" / "ggml"
CPU = "vendor/llama.cpp/ggml/src/ggml-cpu"
NEVER_SPLIT = ("ops.cpp", "use_split_kv_path = !use_ref &&", "use_split_kv_path = false && !use_ref &&")
_CHOICE = "const ggml::cpu::tensor_traits * ggml_repack_get_optimal_repack_type(const struct ggml_tensor * cur) {\n"
_OURS = "    if (const auto own = edgellm_traits(cur)) {\n        return own;\n    }\n"
OWN_PRODUCTS = ("repack.cpp", f"static {_CHOICE}", f'#include "edgellm/rows.h"\n\nstatic {_CHOICE}{_OURS}')
_ATTEND = """void ggml_compute_forward_flash_attn_ext(
        const ggml_compute_params * params,
        ggml_tensor * dst) {
"""
_ATTEND_OURS = "    if (edgellm_attention(params, dst)) {\n        return;\n    }\n"
OWN_ATTENTION = ("ops.cpp", _ATTEND, f'#include "edgellm/attention.h"\n\n{_ATTEND}{_ATTEND_OURS}')


def fingerprint() -> str:
    """Changes with anything that is changed in the source."""
    found = hashlib.sha256(repr((NEVER_SPLIT, OWN_PRODUCTS, OWN_ATTENTION)).encode())
    for file in sorted(KERNELS.glob("*.h")):
        found.update(file.read_bytes())
    return found.hexdigest()[:16]


def change(source: Path) -> list[str]:
    """Change the unpacked source distribution in `source`. Returns what could not be changed, for people."""
    cpu = source / CPU
    left = []
    if not _replace(cpu, *NEVER_SPLIT):
        left.append("attention looks otherwise in this version: a single row may round otherwise than several")
    if not _replace(cpu, *OWN_PRODUCTS):
        left.append("this version chooses kernels otherwise: llama.cpp's own multiply matrices")
    if not _replace(cpu, *OWN_ATTENTION):
        left.append("attention is called otherwise in this version: llama.cpp's own is used")
    shutil.copytree(KERNELS, cpu / "edgellm", dirs_exist_ok=True)
    return left


def _replace(folder: Path, name: str, before: str, after: str) -> bool:
    """Replace the one place where `before` stands."""
    file = folder / name
    code = file.read_text("utf-8") if file.exists() else ""
    if code.count(before) != 1:
        return False
    file.write_text(code.replace(before, after), "utf-8")
    return True
