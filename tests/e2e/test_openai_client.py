"""The official OpenAI client, unmodified, against a real daemon with a real model."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import openai
import pytest
from at_best import at_best
from real_daemon import ENDLESS, MODEL, Watch, home_with_model, wait_for

from edgellm.client import DaemonClient
from edgellm.config import load_settings
from edgellm.paths import Paths

ASK: Any = [{"role": "user", "content": "Name three colours of the rainbow."}]


@pytest.fixture(scope="module")
def paths(starter: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Paths]:
    """A home of this module's own, with the model in its store."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("EDGELLM_CONTEXT", "1024")
        yield home_with_model(starter, tmp_path_factory.mktemp("home"), patch)


@pytest.fixture(scope="module")
def daemon(paths: Paths) -> Iterator[DaemonClient]:
    with DaemonClient.connect_or_start(paths, load_settings(paths, {}).settings, preload=MODEL) as daemon:
        yield daemon
        assert daemon.shutdown(60)


@pytest.fixture(scope="module")
def client(daemon: DaemonClient) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{daemon.info.url}/v1", api_key="unused", max_retries=0, timeout=60) as client:
        yield client


def streamed(client: openai.OpenAI, **options: Any) -> str:
    chunks = client.chat.completions.create(model=MODEL, messages=ASK, stream=True, **options)
    return "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)


def test_a_chat_streamed_and_whole_are_the_same_text(client: openai.OpenAI) -> None:
    whole = client.chat.completions.create(model=MODEL, messages=ASK, max_tokens=12, seed=3, temperature=0.8)
    text = whole.choices[0].message.content
    assert text
    assert whole.model == MODEL
    assert streamed(client, max_tokens=12, seed=3, temperature=0.8) == text
    usage = whole.usage
    assert usage is not None
    assert usage.prompt_tokens > 10
    assert 0 < usage.completion_tokens <= 12
    assert whole.choices[0].finish_reason in ("stop", "length")


def test_several_at_once(client: openai.OpenAI) -> None:
    with ThreadPoolExecutor(3) as pool:
        texts = list(pool.map(lambda seed: streamed(client, max_tokens=8, seed=seed, temperature=1.0), range(3)))
    assert all(texts)


def test_limits_and_stops(client: openai.OpenAI) -> None:
    short = client.completions.create(model=MODEL, prompt="One, two, three, four,", max_tokens=3, temperature=0)
    assert short.choices[0].finish_reason == "length"
    assert short.usage is not None
    assert short.usage.completion_tokens == 3
    stopped = client.completions.create(
        model=MODEL, prompt="One, two, three, four,", max_tokens=64, temperature=0, stop=["eight"]
    )
    assert stopped.choices[0].finish_reason == "stop"
    assert "seven" in stopped.choices[0].text
    assert "eight" not in stopped.choices[0].text


@pytest.mark.parametrize("stream", [False, True])
def test_a_prompt_that_does_not_fit_names_both_sizes(client: openai.OpenAI, stream: bool) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(
            model=MODEL, messages=[{"role": "user", "content": "colour " * 3000}], stream=stream
        )
    assert (caught.value.code, caught.value.param) == ("context_length_exceeded", "messages")
    assert "1,024" in str(caught.value)
    assert "3,0" in str(caught.value)


def test_models(client: openai.OpenAI) -> None:
    assert [model.id for model in client.models.list()] == [MODEL]


def test_a_stream_that_is_closed_frees_the_model(client: openai.OpenAI, daemon: DaemonClient) -> None:
    def freed_s() -> float:
        stream = client.chat.completions.create(
            model=MODEL, messages=ASK, stream=True, max_tokens=800, frequency_penalty=ENDLESS.frequency_penalty
        )
        next(iter(stream))
        assert daemon.ps()[0].running == 1
        stream.close()
        return wait_for(lambda: not daemon.ps()[0].running, 60)

    assert at_best(freed_s, enough=1.0) < 1.0


@pytest.mark.skipif(os.name != "posix", reason="SIGKILL")
def test_a_worker_that_is_killed_fails_its_answers_and_the_next_is_served(
    client: openai.OpenAI, daemon: DaemonClient
) -> None:
    made = client.completions.create(
        model=MODEL, prompt="Once", stream=True, max_tokens=800, frequency_penalty=ENDLESS.frequency_penalty
    )
    stream = iter(made)
    next(stream)
    pid = daemon.ps()[0].pid
    assert pid is not None
    with Watch(daemon) as watch:
        os.kill(pid, signal.SIGKILL)
        with pytest.raises(openai.APIError) as caught:
            list(stream)
        assert caught.value.code == "worker_died"
        assert "no sign of life" not in caught.value.message  # that would take longer
        wait_for(lambda: watch.restarting, 60)
    assert streamed(client, max_tokens=4)
    assert daemon.health()["status"] == "ok"
