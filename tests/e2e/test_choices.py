"""Several answers, log probabilities and samplers, end to end: the official client, a real daemon, the real model."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import openai
import pytest
from real_daemon import MODEL, home_with_model

from edgellm.client import DaemonClient
from edgellm.config import load_settings

NO_END: Any = {"logit_bias": {"0": -100, "2": -100}}  # the tokens that end a text and a turn
ASK: Any = [{"role": "user", "content": "Name three colours, please."}]


@pytest.fixture(scope="module")
def client(starter: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[openai.OpenAI]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("EDGELLM_CONTEXT", "1024")
        paths = home_with_model(starter, tmp_path_factory.mktemp("home"), patch)
        with DaemonClient.connect_or_start(paths, load_settings(paths, {}).settings, preload=MODEL) as daemon:
            with openai.OpenAI(base_url=f"{daemon.info.url}/v1", api_key="x", max_retries=0, timeout=60) as client:
                yield client
            assert daemon.shutdown(15)


def chat(client: openai.OpenAI, **options: Any) -> Any:
    fields = {"max_tokens": 16, "seed": 11, "temperature": 1.0} | options
    return client.chat.completions.create(model=MODEL, messages=ASK, **fields)


def test_two_choices_whole_streamed_and_alone(client: openai.OpenAI) -> None:
    """Two different texts; the same ones streamed; and the first is that of a request for one."""
    whole = chat(client, n=2, **NO_END)
    texts = [choice.message.content for choice in whole.choices]
    assert [choice.index for choice in whole.choices] == [0, 1]
    assert all(texts)
    assert texts[0] != texts[1]
    streamed: dict[int, str] = {0: "", 1: ""}
    ends: list[tuple[int, str]] = []
    usages = []
    for chunk in chat(client, n=2, stream=True, stream_options={"include_usage": True}, **NO_END):
        usages += [chunk.usage] if chunk.usage else []
        for choice in chunk.choices:
            streamed[choice.index] += choice.delta.content or ""
            ends += [(choice.index, choice.finish_reason)] if choice.finish_reason else []
    assert list(streamed.values()) == texts
    assert sorted(ends) == [(choice.index, choice.finish_reason) for choice in whole.choices]
    (usage,) = usages
    assert usage.completion_tokens == whole.usage.completion_tokens == 32
    assert chat(client, **NO_END).choices[0].message.content == texts[0]


def test_log_probabilities_whole_and_streamed(client: openai.OpenAI) -> None:
    whole = chat(client, logprobs=True, top_logprobs=4)
    entries = whole.choices[0].logprobs.content
    assert b"".join(bytes(entry.bytes) for entry in entries).decode().startswith(whole.choices[0].message.content)
    assert len(entries) == whole.usage.completion_tokens
    for entry in entries:
        tops = [other.logprob for other in entry.top_logprobs]
        assert len(tops) == 4
        assert tops == sorted(tops, reverse=True)
        assert entry.logprob <= tops[0] <= 0
        assert sum(map(math.exp, tops)) <= 1 + 1e-6
    streamed: list[Any] = []
    for chunk in chat(client, logprobs=True, top_logprobs=4, stream=True):
        streamed += chunk.choices[0].logprobs.content if chunk.choices[0].logprobs else []
    assert [entry.token for entry in streamed] == [entry.token for entry in entries]
    assert [entry.logprob for entry in streamed] == pytest.approx([entry.logprob for entry in entries], abs=1e-3)


def test_log_probabilities_are_those_of_the_model_whatever_the_samplers(client: openai.OpenAI) -> None:
    """Of the first token: alternatives depend on the prompt alone, not on temperature, bias or cuts."""
    plain, bent = (
        chat(client, logprobs=True, top_logprobs=5, max_tokens=1, **options).choices[0].logprobs.content[0]
        for options in ({}, {"temperature": 0, "presence_penalty": 2, "extra_body": {"top_k": 1, "typical_p": 0.3}})
    )
    assert [other.token for other in plain.top_logprobs] == [other.token for other in bent.top_logprobs]
    logprobs = [[other.logprob for other in entry.top_logprobs] for entry in (plain, bent)]
    assert logprobs[0] == pytest.approx(logprobs[1], abs=1e-3)


def test_completions_have_columns_and_the_best_of_several(client: openai.OpenAI) -> None:
    def mean(choice: Any) -> float:
        values: list[float] = choice.logprobs.token_logprobs
        return sum(values) / len(values)

    options: Any = {"max_tokens": 12, "temperature": 1.0, "seed": 5, "logprobs": 2}
    one = "Once upon a time"
    best = client.completions.create(model=MODEL, prompt=one, n=2, best_of=4, **options)
    four = client.completions.create(model=MODEL, prompt=one, n=4, **options)
    ranked = sorted(four.choices, key=mean, reverse=True)
    assert [choice.text for choice in best.choices] == [choice.text for choice in ranked[:2]]
    columns = ranked[0].logprobs
    assert columns is not None
    assert columns.tokens
    assert columns.text_offset
    for token, offset in zip(columns.tokens, columns.text_offset, strict=True):
        if not token.startswith(("bytes:", "<|")):
            assert ranked[0].text.startswith(token, offset)


@pytest.fixture(scope="module")
def ids(starter: Path) -> Callable[[str], list[int]]:
    """Token ids of a text."""
    from edgellm_llamacpp.native import Vocabulary, library, open_vocabulary
    from edgellm_llamacpp.tokenizer import LlamaCppTokenizer

    tokenizer = LlamaCppTokenizer(library(), Vocabulary(open_vocabulary(library(), starter)), starter)
    return lambda text: tokenizer.encode(text, special=False)


def continued(client: openai.OpenAI, prompt: str, **options: Any) -> str:
    text: str = client.completions.create(model=MODEL, prompt=prompt, temperature=0, **options).choices[0].text
    return text


def test_a_bias_bans_and_forces_tokens(client: openai.OpenAI, ids: Callable[[str], list[int]]) -> None:
    count = "One, two, three,"
    assert continued(client, count, max_tokens=4).startswith(" four")
    assert "four" not in continued(client, count, max_tokens=4, logit_bias={str(ids(" four")[0]): -100})
    (sea,) = ids(" sea")
    assert continued(client, count, max_tokens=2, logit_bias={str(sea): 100}) == " sea sea"


def test_penalties_and_dry_end_repetitions(client: openai.OpenAI) -> None:
    """The same with drafts, which are made of what stood before, as without."""
    rhyme = "One, two, three, four, five, six. One, two, three, four, five, six. One, two,"
    options: tuple[dict[str, Any], ...] = (
        {"presence_penalty": 2.0, "frequency_penalty": 2.0},
        {"extra_body": {"repeat_penalty": 3.0, "repeat_last_n": -1}},
        {"extra_body": {"dry_multiplier": 5.0, "dry_allowed_length": 2}},
    )
    assert continued(client, rhyme, max_tokens=12).startswith(" three, four, five, six.")
    for chosen in options:
        text = continued(client, rhyme, max_tokens=12, **chosen)
        assert not text.startswith(" three, four, five, six.")
        chosen = chosen | {"extra_body": chosen.get("extra_body", {}) | {"drafts": False}}
        assert continued(client, rhyme, max_tokens=12, **chosen) == text


@pytest.mark.parametrize(
    ("options", "param", "words"),
    [
        ({"stop": ""}, "stop", "at least 1 character"),
        ({"stop": ["x", ""]}, "stop[1]", "at least 1 character"),
        ({"max_tokens": 0}, "max_tokens", "from 1 to"),
        ({"logit_bias": {"49152": 1}}, "logit_bias", "tokens 0 to 49151"),
        ({"logit_bias": {"four": 1}}, "logit_bias", "a whole number"),
        ({"extra_body": {"mirostat": 1}}, "mirostat", "0 or 2"),
        ({"extra_body": {"dry_multiplier": 1, "dry_breakers": ["\n\nUser: "]}}, "dry_breakers[0]", "single token"),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_what_cannot_be_is_a_400(
    client: openai.OpenAI, options: dict[str, Any], param: str, words: str, stream: bool
) -> None:
    with pytest.raises(openai.BadRequestError, match=words) as caught:
        chat(client, stream=stream, **options)
    assert caught.value.param == param


def test_every_sampler_at_once(client: openai.OpenAI) -> None:
    """Whole, streamed, and without drafts: one text."""
    extra = {
        "top_k": 40, "min_p": 0.02, "typical_p": 0.95, "repeat_penalty": 1.1, "repeat_last_n": 128,
        "dry_multiplier": 0.8, "xtc_probability": 0.3, "xtc_threshold": 0.1,
    }  # fmt: skip
    for more in ({}, {"mirostat": 2, "mirostat_tau": 4.0}):
        options = {"max_tokens": 24, "top_p": 0.95, "presence_penalty": 0.2, "extra_body": extra | more}
        text = chat(client, **options).choices[0].message.content
        chunks = chat(client, stream=True, **options)
        assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == text
        options["extra_body"] = extra | more | {"drafts": False}
        assert chat(client, **options).choices[0].message.content == text
