"""Installs llama-cpp-python, compiled for this CPU, into the Python that runs this.

pip alone does that too. This adds a few things.

On CPUs with Intel's AMX, GCC before 13.3 compiles llama.cpp's tile code wrongly (GCC PR 114098); edgellm would notice
and do without AMX, at a third of the prompt speed. Two flags avoid it.

On CPUs with AVX512-FP16 llama.cpp takes values 128 at a time and what is left one by one: with heads of 64, as small
models have, all of them. One flag makes it take 64, in float32: attention over a long text is several times as fast.

And the source is changed (`engine_source.py`): attention rounds the same for one row as for several, and on x86 CPUs
kernels of our own multiply quantised matrices and attend. With a build that pip made, edgellm notices that it lacks the
first, and drafts only where nothing can change.

pip's own wheel cache knows nothing of flags and changes, so these wheels are kept in a cache of their own.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.metadata
import os
import platform
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import threading
import time
import tomllib
from collections.abc import Iterator
from pathlib import Path

import engine_source

ROOT = Path(__file__).parent.parent
NAME = "llama-cpp-python"
MARKER = Path(sys.prefix) / ".llama-cpp-flags"  # what the installed one was built with
KEEP_STORES = "-fno-tree-dse -fno-dse"
NARROW = "-mno-avx512fp16"
REDRAW_S, LINE_S = 1.0, 30.0  # between signs of life: on a terminal, elsewhere


def requirement() -> str:
    project: dict[str, list[str]]
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    return next(line for line in project["dependencies"] if line.startswith(NAME))


def cpu_features() -> str:
    """The CPU's feature list; empty where the system does not show it."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text(errors="replace").splitlines() if info.exists() else []
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("flags")), "")


def compiler_path() -> str | None:
    names = (os.environ.get("CXX"), "c++", "g++")
    return next((found for name in names if name and (found := shutil.which(name))), None)


def compiler() -> str:
    """What will compile: its version line."""
    path = compiler_path()
    if path is None:
        return "none"
    shown = subprocess.run([path, "--version"], capture_output=True, text=True, check=False).stdout
    return shown.splitlines()[0] if shown else path


def understood(flag: str) -> bool:
    """Does the compiler know this flag? One that is too old for it lacks what it turns off, too."""
    command = [compiler_path() or "c++", flag, "-E", "-x", "c++", "-"]
    try:
        return subprocess.run(command, input=b"", capture_output=True, check=False).returncode == 0
    except OSError:
        return False


def compiler_flags() -> str:
    """What this machine's compiler must be told."""
    features, wanted = cpu_features().split(), []
    if "amx_int8" in features and "clang" not in compiler():
        wanted.append(KEEP_STORES)
    if "avx512_fp16" in features and understood(NARROW):
        wanted.append(NARROW)
    return " ".join(wanted)


def flags() -> str:
    """CMAKE_ARGS for the build: the user's own, and what this machine needs."""
    own, needed = os.environ.get("CMAKE_ARGS", ""), compiler_flags()
    if platform.system() != "Linux" or not needed:
        return own
    return f"{own} -DCMAKE_C_FLAGS='{needed}' -DCMAKE_CXX_FLAGS='{needed}'".strip()


def pip(*arguments: str, **environment: str) -> None:
    subprocess.run([sys.executable, "-m", "pip", *arguments], check=True, env={**os.environ, **environment})


def installed() -> str | None:
    try:
        return importlib.metadata.version(NAME)
    except importlib.metadata.PackageNotFoundError:
        return None


def unpacked(folder: Path) -> Path:
    """The source distribution, downloaded and unpacked into `folder`."""
    pip("download", "--quiet", "--no-deps", "--no-binary", NAME, "--dest", str(folder), requirement())
    (archive,) = folder.glob("*.tar.gz")
    with tarfile.open(archive) as tar:
        tar.extractall(folder, filter="data")
    return folder / archive.name.removesuffix(".tar.gz")


def how_far(build: Path) -> str:
    """What is compiled of what ninja will compile in this folder; empty before that is known, or without ninja."""
    plan = build / "build.ninja"
    if not plan.exists():
        return ""
    files = len(re.findall(r"^build \S+\.o(?:bj)?:", plan.read_text(errors="replace"), re.MULTILINE))
    done = sum(1 for file in build.rglob("*.o*") if file.suffix in (".o", ".obj"))
    return f", {done} of {files} files"


@contextlib.contextmanager
def signs_of_life(build: Path) -> Iterator[None]:
    """While the block runs, say that it goes on: a line that is redrawn on a terminal, plain ones elsewhere."""
    terminal, over, began = sys.stdout.isatty(), threading.Event(), time.monotonic()

    def tell() -> None:
        while not over.wait(REDRAW_S if terminal else LINE_S):
            minutes, seconds = divmod(int(time.monotonic() - began), 60)
            line = f"compiling: {minutes}:{seconds:02}{how_far(build)}"
            print(f"\r{line:<50}" if terminal else line, end="" if terminal else "\n", flush=True)

    teller = threading.Thread(target=tell, daemon=True)
    teller.start()
    try:
        yield
    finally:
        over.set()
        teller.join()
        if terminal:
            print(f"\r{'':<50}\r", end="", flush=True)


def compile_to(folder: Path, work: Path, *, changed: bool) -> None:
    """Put a wheel into `folder`. Raises CalledProcessError when it does not compile."""
    work.mkdir()
    source = unpacked(work)
    for left in engine_source.change(source) if changed else ():
        print(f"{NAME}: {left}", flush=True)
    build = work / "build"
    options = ["--quiet", "--no-deps", "--no-cache-dir", "--wheel-dir", str(folder)]
    with signs_of_life(build):
        pip("wheel", *options, f"--config-settings=build-dir={build}", str(source), CMAKE_ARGS=flags())


def wheel(wanted: str) -> Path:
    """A wheel built as `wanted`, from the cache where there is one."""
    made_for = f"{requirement()} {wanted} {compiler()} {sys.version} {cpu_features()}"
    key = hashlib.sha256(made_for.encode()).hexdigest()[:16]
    home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    folder = home / "edgellm" / "wheels" / key
    if not list(folder.glob("*.whl")):
        folder.mkdir(parents=True, exist_ok=True)
        print(f"compiling {requirement()} for this CPU: some minutes, once", flush=True)
        # pip copies the wheel bit by bit: half of one must not be taken for a whole one the next time.
        with tempfile.TemporaryDirectory() as work, tempfile.TemporaryDirectory(dir=folder) as made:
            try:
                compile_to(Path(made), Path(work) / "changed", changed=True)
            except subprocess.CalledProcessError:
                print(f"{NAME}: it does not compile with edgellm's changes; now without them", flush=True)
                print(f"if memory or disk ran out, try again: rm -r '{folder}' '{MARKER}'; make setup", flush=True)
                compile_to(Path(made), Path(work) / "plain", changed=False)
            (file,) = Path(made).glob("*.whl")
            file.replace(folder / file.name)
    return next(folder.glob("*.whl"))


def main() -> None:
    wanted = f"{flags()} {engine_source.fingerprint()}".strip()
    before = MARKER.read_text("utf-8") if MARKER.exists() else ""
    if installed() is not None and before == wanted:
        return
    built = wheel(wanted)
    MARKER.unlink(missing_ok=True)  # stopped in the middle, it is installed again
    pip("install", "--quiet", "--force-reinstall", "--no-deps", str(built))
    pip("install", "--quiet", requirement())
    MARKER.write_text(wanted, "utf-8")


if __name__ == "__main__":
    main()
