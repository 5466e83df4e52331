"""Hundreds of malformed files: a clear error for each, at once, in flat memory."""

from __future__ import annotations

import gc
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import malformed
import psutil
import pytest
from malformed import Case

from edgellm.errors import BadModelFile
from edgellm.formats.gguf import read_model
from edgellm.formats.safetensors import read_safetensors

SLOWEST_S = 1.0
PEAK_BYTES = 1 << 20
GROWTH_BYTES = 8 << 20  # of the process, over a whole corpus


def resident() -> int:
    """Bytes of this process in memory."""
    exact = Path("/proc/self/smaps_rollup")  # statm may be off by megabytes where there are many cores
    if not exact.exists():
        return int(psutil.Process().memory_info().rss)
    (line,) = [line for line in exact.read_text().splitlines() if line.startswith("Rss:")]
    return int(line.split()[1]) << 10


def refuse(case: Case, path: Path, read: Callable[[Path], object]) -> None:
    """One file: refused with its path, the field and a way out, quickly, and with little memory."""
    name, data, expected = case
    path.write_bytes(data)
    tracemalloc.start()
    start = time.thread_time()
    with pytest.raises(BadModelFile) as caught:
        read(path)
    elapsed = time.thread_time() - start
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    message = caught.value.message
    assert message.startswith(f"{path}: "), name
    assert expected in message, f"{name}: {message}"
    assert message.isprintable(), name
    assert len(message) < 500, name
    assert caught.value.hint, name
    assert elapsed < SLOWEST_S, f"{name}: {elapsed:.2f} s"
    assert peak < PEAK_BYTES, f"{name}: {peak} bytes"


@pytest.mark.parametrize(
    ("cases", "read", "at_least"),
    [
        pytest.param(malformed.gguf_cases(), read_model, 200, id="gguf"),
        pytest.param(malformed.safetensors_cases(), read_safetensors, 90, id="safetensors"),
    ],
)
def test_every_malformed_file_is_refused(
    cases: list[Case], read: Callable[[Path], object], at_least: int, tmp_path: Path
) -> None:
    assert len({name for name, _, _ in cases}) == len(cases) >= at_least
    assert len({data for _, data, _ in cases}) >= at_least  # and they differ
    path = tmp_path / "model.bin"
    for case in cases[:20]:
        refuse(case, path, read)
    gc.collect()
    before = resident()
    for case in cases:
        refuse(case, path, read)
    gc.collect()
    assert resident() - before < GROWTH_BYTES
