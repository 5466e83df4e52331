"""What end-to-end tests share: the starter model, run by each engine in turn."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

TORCH = pytest.param("torch", marks=[pytest.mark.slow, pytest.mark.timeout(600)])  # its reference kernels take a while


@pytest.fixture(scope="module", params=["llamacpp", TORCH])
def starter(request: pytest.FixtureRequest, smollm2: Path) -> Iterator[Path]:
    """SmolLM2 135M Instruct; daemons that this module starts run it on the engine whose turn it is."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("EDGELLM_ENGINE", request.param)
        yield smollm2
