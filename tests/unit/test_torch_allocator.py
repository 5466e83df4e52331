"""Memory of large tensors goes back to the system, however they came and went before."""

from __future__ import annotations

import subprocess
import sys

import pytest
from edgellm_torch import allocator

HOLES = """
import re, torch
from pathlib import Path
from edgellm_torch import allocator
assert allocator.settle()
exact = Path("/proc/self/smaps_rollup")  # status may be off by megabytes where there are many cores
told, name = (exact, "Rss") if exact.exists() else (Path("/proc/self/status"), "VmRSS")
resident = lambda: int(re.search(rf"^{name}: +(\\d+) kB", told.read_text(), re.MULTILINE)[1]) << 10
torch.zeros(31 << 18)
before = resident()
kept = []
for number in range(24):  # a block of 12 to 24 MiB, and something small above it that stays
    block = torch.zeros((12 << 18) + (number << 17))
    kept.append(bytearray(100_000))
    del block
print(resident() - before)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="what is resident is read from /proc")
def test_blocks_that_are_freed_leave_no_holes() -> None:
    if not allocator.settle():
        pytest.skip("this system's allocator has no threshold")
    done = subprocess.run([sys.executable, "-c", HOLES], capture_output=True, text=True, check=True)
    assert int(done.stdout) < 12 << 20
