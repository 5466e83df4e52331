"""Loads each engine once, and hands it to tests empty."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from contract.engines import ENGINES, LAYERS, PLACEMENT, TINY, Engine, open_engine
from shortened import shortened

from edgellm.contracts.engine import TokenRunner


@pytest.fixture(scope="session", params=ENGINES)
def engine(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Engine:
    name: str = request.param
    if name.startswith("fake"):
        return open_engine(name, tmp_path_factory.mktemp("fake"))
    path: Path = request.getfixturevalue(name.partition("-")[2])
    if name.startswith("torch"):  # its reference kernels are slow; what is promised here does not depend on depth
        path = shortened(path, LAYERS[name], tmp_path_factory.mktemp(name))
    return open_engine(name, path)


@pytest.fixture(scope="session")
def loaded(engine: Engine) -> Iterator[TokenRunner]:
    runner = engine.load(PLACEMENT)
    yield runner
    runner.close()


@pytest.fixture
def runner(loaded: TokenRunner) -> Iterator[TokenRunner]:
    """A loaded runner with nothing in it."""
    yield loaded
    for sequence in range(loaded.info.max_sequences):
        loaded.free(sequence)


@pytest.fixture(scope="session")
def loaded_tiny(engine: Engine) -> Iterator[TokenRunner]:
    runner = engine.load(TINY)
    yield runner
    runner.close()


@pytest.fixture
def tiny(loaded_tiny: TokenRunner) -> Iterator[TokenRunner]:
    """A loaded runner with room for 256 tokens."""
    yield loaded_tiny
    for sequence in range(loaded_tiny.info.max_sequences):
        loaded_tiny.free(sequence)
