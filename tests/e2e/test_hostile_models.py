"""Cases 10, 11, 14 and 22 with real models: templates that attack or never end, numbers that are none, two keys."""

from __future__ import annotations

import shutil
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import numpy as np
import pytest
from real_daemon import MODEL, Served, home_with_model, serving, wait_for

from edgellm.contracts.status import LoadedModel
from edgellm.formats.gguf import read_model
from edgellm.library.pull import pull
from edgellm.server import keys

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

TEMPLATES = {
    "escape": "{{ ''.__class__.__mro__ }}",
    "endless": "{% for i in range(10**9) %}{% endfor %}",
    "endless-nested": "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
}


def with_template(source: Path, target: Path, template: str) -> None:
    """A copy of a model whose chat template is another, of the same length in bytes."""
    shutil.copyfile(source, target)
    own = read_model(source).metadata["tokenizer.chat_template"]
    assert isinstance(own, str)
    size = len(own.encode())
    with target.open("r+b") as file:
        at = file.read(32 << 20).index(own.encode())
        file.seek(at)
        file.write(template.encode().ljust(size))


def with_infinity(source: Path, target: Path) -> None:
    """A copy of a model with one weight without bound: what follows from it is no number. (A NaN itself would be lost
    where activations are quantised: the largest of a block is found by comparisons, which NaN never wins.)"""
    shutil.copyfile(source, target)
    norm = next(tensor for tensor in read_model(source).tensors if tensor.name == "output_norm.weight")
    with target.open("r+b") as file:
        file.seek(norm.offset)
        file.write(np.array([np.inf], np.float32).tobytes())


@pytest.fixture(scope="module")
def served(starter: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("models")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("EDGELLM_CONTEXT", "512")
        paths = home_with_model(starter, tmp_path_factory.mktemp("home"), patch)
        for name, template in TEMPLATES.items():
            with_template(starter, folder / "copy.gguf", template)
            pull(str(folder / "copy.gguf"), name=name, paths=paths, report=lambda _: None)
        with_infinity(starter, folder / "copy.gguf")
        pull(str(folder / "copy.gguf"), name="nan", paths=paths, report=lambda _: None)
        (folder / "copy.gguf").unlink()
        with serving(paths) as served:
            yield served


@pytest.fixture(scope="module")
def http(served: Served) -> Iterator[httpx2.Client]:
    with httpx2.Client(base_url=served.client.info.url, trust_env=False, timeout=120) as http:
        yield http


def chat(http: httpx2.Client, model: str, **fields: Any) -> httpx2.Response:
    messages = [{"role": "user", "content": "Hi"}]
    return http.post("/v1/chat/completions", json={"model": model, "messages": messages, "max_tokens": 2} | fields)


def complete(http: httpx2.Client, model: str, prompt: str = "One, two,", **fields: Any) -> httpx2.Response:
    return http.post("/v1/completions", json={"model": model, "prompt": prompt, "max_tokens": 2} | fields)


@pytest.mark.parametrize("model", TEMPLATES)
def test_case_10_a_hostile_template_fails_its_chats_and_nothing_else(model: str, http: httpx2.Client) -> None:
    assert complete(http, model).status_code == 200  # loaded; what needs no template is served
    began = time.monotonic()
    failed: list[httpx2.Response] = []
    asking = threading.Thread(target=lambda: failed.append(chat(http, model)))
    asking.start()
    assert complete(http, model, max_tokens=8).status_code == 200  # while that is tried
    asking.join()
    assert failed[0].status_code == 400
    assert failed[0].json()["error"]["code"] == "bad_model_file"
    assert "class" not in failed[0].json()["error"]["message"] or "mro" not in failed[0].json()["error"]["message"]
    assert time.monotonic() - began < 60
    assert chat(http, MODEL).status_code == 200


def test_case_22_numbers_that_are_none_fail_their_request_and_leave_no_cache(
    http: httpx2.Client, served: Served
) -> None:
    for stream in (False, True):
        failed = complete(http, "nan", stream=stream)
        assert failed.status_code == 500
        assert failed.json()["error"]["code"] == "generation_failed"
        assert "not finite" in failed.json()["error"]["message"]
        assert failed.headers["x-should-retry"] == "false"

    def nan() -> LoadedModel:
        (model,) = [model for model in served.client.ps() if model.name.startswith("nan")]
        return model

    wait_for(lambda: nan().kv_used == 0, 60)  # a heartbeat tells it
    assert (nan().state, nan().restarts) == ("ready", 0)
    answered = complete(http, MODEL)
    assert answered.status_code == 200, answered.text


def test_case_11_a_bias_for_a_token_that_does_not_exist(http: httpx2.Client) -> None:
    refused = complete(http, MODEL, logit_bias={"999999999": 5})
    assert refused.status_code == 400
    assert refused.json()["error"]["param"].startswith("logit_bias")


def test_case_14_two_keys_share_no_cached_prompt(
    starter: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EDGELLM_CONTEXT", "512")
    paths = home_with_model(starter, tmp_path / "home", monkeypatch)
    mine, other = keys.add(paths, "mine"), keys.add(paths, "other")
    prompt = "The quick brown fox jumps over the lazy dog. " * 12

    def cached(key: str) -> int:
        body = {"model": MODEL, "prompt": prompt, "max_tokens": 1}
        headers = {"authorization": f"Bearer {key}"}
        answer = httpx2.post(url, json=body, headers=headers, trust_env=False, timeout=120).json()
        found: int = answer["usage"]["prompt_tokens_details"]["cached_tokens"]
        return found

    with serving(paths) as daemon:
        url = daemon.client.info.url + "/v1/completions"
        assert cached(mine) == 0
        assert cached(mine) > 50
        assert cached(other) == 0  # nor does the time to the first token tell what somebody else has asked
        assert cached(other) > 50
