"""A short flood: clients that leave, workers that die; nothing is lost track of, nothing stays behind."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

FLOOD = Path(__file__).parents[2] / "benchmarks" / "flood.py"


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.skipif(os.name != "posix", reason="SIGKILL")
def test_case_23_every_request_ends_and_nothing_stays(starter: Path) -> None:
    options = "--seconds 12 --clients 40 --kill-every 4 --queue 16 --threads 1 --patience 400"
    done = subprocess.run(
        [sys.executable, str(FLOOD), str(starter), *options.split()], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    for outcome in ("answered", "left", "refused: 429", "refused: 503"):
        assert outcome in done.stdout
