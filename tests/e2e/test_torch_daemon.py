"""The torch engine behind the real daemon: asked for, named, several at once, and never inside the daemon itself."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx2
import psutil
import pytest
from real_daemon import MODEL, Served, home_with_model, serving
from shortened import shortened

from edgellm.contracts.events import Event, Failed, Finished, TextDelta
from edgellm.contracts.request import GenerateRequest, Sampling, Text


@pytest.fixture(scope="module")
def served(smollm2: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("EDGELLM_ENGINE", "torch")
        patch.setenv("EDGELLM_CONTEXT", "512")
        short = shortened(smollm2, 2, tmp_path_factory.mktemp("short"))
        paths = home_with_model(short, tmp_path_factory.mktemp("home"), patch)
        with serving(paths) as served:
            yield served


def text(served: Served, prompt: str, tokens: int = 12) -> str:
    sampling = Sampling(temperature=0.8, seed=7)
    request = GenerateRequest(id="", model=MODEL, prompt=Text(prompt), sampling=sampling, max_tokens=tokens)
    said: list[Event] = list(served.client.generate(request))
    assert not [event for event in said if isinstance(event, Failed)]
    assert isinstance(said[-1], Finished)
    return "".join(event.text for event in said if isinstance(event, TextDelta))


def test_it_answers_alone_as_among_others_and_says_who_it_is(served: Served) -> None:
    prompts = [f"The {thing} of the lighthouse" * 4 for thing in ("keeper", "lamp", "book", "stairs")]
    alone = [text(served, prompt) for prompt in prompts]
    assert len(set(alone)) == len(prompts)
    with ThreadPoolExecutor(len(prompts)) as pool:
        assert list(pool.map(lambda prompt: text(served, prompt), prompts)) == alone
    assert served.model.engine == "PyTorch"
    health = httpx2.get(f"{served.client.info.url}/health", trust_env=False).json()
    assert [model["engine"] for model in health["models"].values()] == ["PyTorch"]


@pytest.mark.skipif(not hasattr(psutil.Process, "memory_maps"), reason="the system does not tell what is mapped")
def test_the_daemon_has_no_torch_in_it(served: Served) -> None:
    text(served, "Once", 2)
    assert any("torch" in mapped.path for mapped in psutil.Process(served.worker).memory_maps())
    assert not any("torch" in mapped.path for mapped in psutil.Process(served.process.pid).memory_maps())
