"""What was found out about this build of llama.cpp by running it, remembered in a folder between starts.

Some of it can only be learned by running code that may crash or hang; so a process of its own is asked (`canary.py`).
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

from edgellm.contracts.engine import ENGINE_STATE
from edgellm.errors import BadModelFile
from edgellm.formats.checkpoint import read_json

PATIENCE_S = 30.0
_LARGEST = 1 << 20  # bytes of what is remembered

_unkept: dict[str, Any] = {}  # where there is no folder, a process remembers for itself


def identity(api: Any) -> str:
    """Changes with the installed library."""
    library = Path(api.llama_cpp._lib._name).parent
    parts = sorted(library.glob("*ggml-cpu*"))
    return " ".join(f"{part}:{part.stat().st_size}:{part.stat().st_mtime_ns}" for part in parts)


def ask(api: Any, *question: str, command: list[str] | None = None) -> str | None:
    """The canary's answer (what it printed), or None when it crashed. Asked once per build and question.

    `command` replaces the canary in tests.
    """
    build, name = identity(api), " ".join(question)
    memory = _memory()
    known = _remembered(memory)
    if known.get("build") != build:
        known.clear()
        known["build"] = build
    if name not in known:
        known[name] = _run([*(command or [sys.executable, "-P", "-m", "edgellm_llamacpp.canary"]), *question])
        if memory is not None:
            with contextlib.suppress(OSError):
                _keep(memory, json.dumps(known))
    answer = known[name]
    return answer if isinstance(answer, str) else None


def _memory() -> Path | None:
    folder = os.environ.get(ENGINE_STATE)
    return Path(folder) / "llamacpp-build.json" if folder else None


def _remembered(memory: Path | None) -> dict[str, Any]:
    if memory is None:
        return _unkept
    try:
        return read_json(memory, _LARGEST)
    except BadModelFile:  # of this name here: there is none, or something else is in its place
        return {}


def _keep(memory: Path, text: str) -> None:
    """Replace the file in one step: workers that start at the same time read it whole, or what it was before."""
    memory.parent.mkdir(parents=True, exist_ok=True)
    new = memory.with_name(f".{memory.name}.{os.getpid()}.{threading.get_ident()}")
    try:
        new.write_text(text, "utf-8")
        new.replace(memory)
    finally:
        new.unlink(missing_ok=True)


def _run(command: list[str]) -> str | None:
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=PATIENCE_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None
