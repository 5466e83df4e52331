"""schemathesis over the OpenAPI document against the real daemon with a real model: no 5xx, no violation."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from described import Described, operations, violations
from real_daemon import MODEL, Served, home_with_model, serving

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def served(starter: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("EDGELLM_CONTEXT", "128")
        patch.setenv("EDGELLM_REQUEST_TIMEOUT_S", "20")  # a 408 is an answer that the document knows
        with serving(home_with_model(starter, tmp_path_factory.mktemp("home"), patch)) as served:
            yield served


@pytest.mark.parametrize("operation", operations(), ids=str)
def test_the_daemon_keeps_to_its_document(served: Served, operation: Described) -> None:
    examples = 6 if os.environ["EDGELLM_ENGINE"] == "torch" else 12  # its answers take their time
    assert violations(served.client.info.url, operation, model=MODEL, examples=examples) == []
    assert served.client.health()["status"] == "ok"
