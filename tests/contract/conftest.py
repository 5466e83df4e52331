"""Loads each engine once, and hands it to tests empty."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from contract.engines import (
    ENGINES,
    LAYERS,
    PLACEMENT,
    SLOW_ENGINES,
    TINY,
    TINY_MODELS,
    Engine,
    open_engine,
    tiny_model,
)
from shortened import shortened

from edgellm.contracts.runner import TokenRunner

PARAMS = [*ENGINES, *(pytest.param(name, marks=pytest.mark.slow) for name in SLOW_ENGINES)]


@pytest.fixture(scope="session", params=PARAMS)
def engine(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Engine:
    name: str = request.param
    if name.startswith("fake"):
        return open_engine(name, tmp_path_factory.mktemp("fake"))
    if name in TINY_MODELS:
        return open_engine(name, tiny_model(name, tmp_path_factory.mktemp(name)))
    path: Path = request.getfixturevalue(name.partition("-")[2])
    if name in LAYERS:
        path = shortened(path, LAYERS[name], tmp_path_factory.mktemp(name))
    return open_engine(name, path)


@pytest.fixture(scope="session", params=("torch-tiny-gemma3", "torch-tiny-deepseek2"))
def tiny_torch(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Engine:
    """The torch engine with tiny models: windows and full attention, and latent attention with experts."""
    name: str = request.param
    return open_engine(name, tiny_model(name, tmp_path_factory.mktemp(name)))


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
