"""Installs llama-cpp-python, compiled for this CPU, into the Python that runs this.

pip alone does that too. This adds one thing: on CPUs with Intel's AMX, GCC before 13.3 compiles llama.cpp's tile code
wrongly (GCC PR 114098); edgellm would notice and do without AMX, at a third of the prompt speed. Two flags avoid it.
pip's own wheel cache knows nothing of flags, so wheels built with them are kept in a cache of their own.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import os
import platform
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).parent.parent
NAME = "llama-cpp-python"
MARKER = Path(sys.prefix) / ".llama-cpp-flags"  # what the installed one was built with
KEEP_STORES = "-fno-tree-dse -fno-dse"


def requirement() -> str:
    project: dict[str, list[str]]
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    return next(line for line in project["dependencies"] if line.startswith(NAME))


def cpu_features() -> str:
    """The CPU's feature list; empty where the system does not show it."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text(errors="replace").splitlines() if info.exists() else []
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("flags")), "")


def has_amx() -> bool:
    return "amx_int8" in cpu_features().split()


def compiler() -> str:
    """What will compile: its version line."""
    for name in (os.environ.get("CXX"), "c++", "g++"):
        if name and shutil.which(name):
            shown = subprocess.run([name, "--version"], capture_output=True, text=True, check=False).stdout
            return shown.splitlines()[0] if shown else name
    return "none"


def flags() -> str:
    """CMAKE_ARGS for the build: the user's own, and what this machine needs."""
    own = os.environ.get("CMAKE_ARGS", "")
    if platform.system() != "Linux" or not has_amx() or "clang" in compiler():
        return own
    return f"{own} -DCMAKE_C_FLAGS='{KEEP_STORES}' -DCMAKE_CXX_FLAGS='{KEEP_STORES}'".strip()


def pip(*arguments: str, **environment: str) -> None:
    subprocess.run([sys.executable, "-m", "pip", *arguments], check=True, env={**os.environ, **environment})


def installed() -> str | None:
    try:
        return importlib.metadata.version(NAME)
    except importlib.metadata.PackageNotFoundError:
        return None


def build_with(wanted: str) -> Path:
    """A wheel built with these flags, from the cache where there is one."""
    made_for = f"{requirement()} {wanted} {compiler()} {sys.version} {cpu_features()}"
    key = hashlib.sha256(made_for.encode()).hexdigest()[:16]
    home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    folder = home / "edgellm" / "wheels" / key
    if not list(folder.glob("*.whl")):
        folder.mkdir(parents=True, exist_ok=True)
        print(f"compiling {requirement()} for this CPU with {wanted}: some minutes, once", flush=True)
        options = ["--quiet", "--no-deps", "--no-cache-dir", "--no-binary", NAME, "--wheel-dir", str(folder)]
        pip("wheel", *options, requirement(), CMAKE_ARGS=wanted)
    return next(folder.glob("*.whl"))


def main() -> None:
    wanted = flags()
    before = MARKER.read_text("utf-8") if MARKER.exists() else ""
    if installed() is not None and before == wanted:
        return
    if wanted:
        pip("install", "--quiet", "--force-reinstall", "--no-deps", str(build_with(wanted)))
    elif installed() is None:
        print(f"installing {requirement()}, compiled for this CPU: some minutes, the first time", flush=True)
    pip("install", "--quiet", requirement())
    MARKER.write_text(wanted, "utf-8")


if __name__ == "__main__":
    main()
