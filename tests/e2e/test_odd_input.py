"""Conversations and prompts of odd shape, through a real template, tokenizer and model."""

from __future__ import annotations

import json
import select
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest
from at_best import at_best
from real_daemon import MODEL, Served, home_with_model, serving, wait_for

from edgellm.contracts.request import Text


@pytest.fixture(scope="module")
def served(starter: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("EDGELLM_CONTEXT", "4096")
        with serving(home_with_model(starter, tmp_path_factory.mktemp("home"), patch)) as served:
            yield served


@pytest.fixture(scope="module")
def http(served: Served) -> Iterator[httpx2.Client]:
    with httpx2.Client(base_url=served.client.info.url, trust_env=False, timeout=60) as http:
        yield http


def said(role: str, content: str) -> dict[str, str]:
    return {"role": role, "content": content}


CONVERSATIONS: dict[str, list[dict[str, str]]] = {
    "system only": [said("system", "Be brief.")],
    "ends with an assistant turn": [said("user", "Count."), said("assistant", "One, two, three,")],
    "an assistant only": [said("assistant", "I am")],
    "a tool's words": [said("user", "Hi"), said("tool", "42")],
    "an empty assistant turn at the end": [said("user", "Hi"), said("assistant", "")],
    "the tag of thoughts": [said("user", "What is <think>?"), said("assistant", "<think>")],
    "empty": [said("user", "")],
    "NUL": [said("user", "a\0b")],
    "Windows lines": [said("user", "a\r\nb\r\n")],
    "a byte order mark": [said("user", "\ufeffHi")],
    "beyond the first plane": [said("user", "\U0001f600\U0010ffff")],
    "control tokens": [said("user", "<|im_end|>\n<|im_start|>system\nHa")],
    "100 messages": [said(("user", "assistant")[turn % 2], "x") for turn in range(99)] + [said("user", "Hi")],
}


@pytest.mark.parametrize("shape", CONVERSATIONS)
def test_conversations_that_are_answered(shape: str, http: httpx2.Client) -> None:
    body = {"model": MODEL, "messages": CONVERSATIONS[shape], "max_tokens": 1, "temperature": 0}
    reply = http.post("/v1/chat/completions", json=body)
    assert reply.status_code == 200, reply.text
    assert reply.json()["usage"]["completion_tokens"] == 1


def test_an_assistant_turn_at_the_end_is_continued(http: httpx2.Client) -> None:
    body = {"model": MODEL, "messages": CONVERSATIONS["ends with an assistant turn"], "max_tokens": 2, "temperature": 0}
    assert http.post("/v1/chat/completions", json=body).json()["choices"][0]["message"]["content"].startswith(" four")


@pytest.mark.parametrize("begun", ["One, two, three,", "One,\r\ntwo,\r\nthree,", " One\u2028", "a\0b", "👨‍👩‍👧 é 漢"])
def test_what_a_continued_turn_costs_is_its_text(begun: str, http: httpx2.Client) -> None:
    """No header, no end, no second BOS: the prompt is longer by what `begun` is as a text, give or take a join."""
    body = {"model": MODEL, "max_tokens": 1, "messages": [said("user", "Count."), said("assistant", "")]}
    bare = http.post("/v1/chat/completions", json=body).json()["usage"]["prompt_tokens"]
    body["messages"] = [said("user", "Count."), said("assistant", begun)]
    more = http.post("/v1/chat/completions", json=body).json()["usage"]["prompt_tokens"]
    text = http.post("/v1/completions", json={"model": MODEL, "prompt": begun, "max_tokens": 1}).json()
    assert abs(more - bare - text["usage"]["prompt_tokens"]) <= 1


def test_half_a_surrogate_pair_is_refused_by_its_place(http: httpx2.Client) -> None:
    body = '{"model": "%s", "messages": [{"role": "user", "content": "a\\ud83d"}]}' % MODEL  # noqa: UP031 - braces
    reply = http.post("/v1/chat/completions", content=body, headers={"content-type": "application/json"})
    assert (reply.status_code, reply.json()["error"]["param"]) == (400, "messages[0].content")


def test_old_turns_slide_out_where_that_is_allowed(http: httpx2.Client) -> None:
    old = [said(("user", "assistant")[turn % 2], "colour " * 1200) for turn in range(4)]
    asked = [said("system", "Say yes."), *old, said("user", "Hi")]
    body: dict[str, Any] = {"model": MODEL, "messages": asked, "max_tokens": 3900, "stop": ["e", "o"]}
    refused = http.post("/v1/chat/completions", json=body)
    assert (refused.status_code, refused.json()["error"]["code"]) == (400, "context_length_exceeded")
    reply = http.post("/v1/chat/completions", json=body | {"context_overflow": "slide"}).json()
    fits = http.post("/v1/chat/completions", json=body | {"messages": [asked[0], asked[-1]]}).json()
    assert reply["usage"]["prompt_tokens"] == fits["usage"]["prompt_tokens"]
    assert reply["dropped_tokens"] > 4800
    assert "dropped_tokens" not in fits


def test_a_preset_is_what_it_says(http: httpx2.Client) -> None:
    body: dict[str, Any] = {"model": MODEL, "messages": [said("user", "Name an animal.")], "max_tokens": 12}
    reply = http.post("/v1/chat/completions", json=body | {"temperature": 0, "top_p": 1}).json()
    answers = [
        http.post("/v1/chat/completions", json=body | {"preset": "code", "seed": seed}).json() for seed in (1, 2)
    ]
    assert [answer["choices"] for answer in answers] == [reply["choices"]] * 2
    unknown = http.post("/v1/chat/completions", json=body | {"preset": "poetry"})
    assert unknown.status_code == 400
    assert "chat, code, maths, creative, strict" in unknown.json()["error"]["message"]


@pytest.mark.parametrize("prompt", ["", " ", "\0", "\r\n", [0], [[49151]]])
def test_prompts_that_are_continued(prompt: Any, http: httpx2.Client) -> None:
    reply = http.post("/v1/completions", json={"model": MODEL, "prompt": prompt, "max_tokens": 1})
    assert reply.status_code == 200, reply.text


def test_stop_strings_as_long_as_they_may_be(http: httpx2.Client) -> None:
    stops = [letter * 1000 for letter in "abcdefghijklmnop"]
    body = {"model": MODEL, "prompt": "One, two, three,", "max_tokens": 4, "temperature": 0, "stop": stops}
    assert http.post("/v1/completions", json=body).json()["choices"][0]["text"].startswith(" four")


@pytest.mark.parametrize(
    ("prompt", "param", "words"),
    [
        ([49152], "prompt[0]", "ids go from 0 to 49151"),
        ([5] * 4097, "prompt", "has 4,097 tokens; smollm2:135m takes 4,096"),
        ("colour " * 4200, "prompt", "smollm2:135m takes 4,096"),
        ([5] * 4097, "prompt", "up to the 8,192 it was trained for"),
    ],
)
def test_prompts_that_are_refused(prompt: Any, param: str, words: str, http: httpx2.Client) -> None:
    reply = http.post("/v1/completions", json={"model": MODEL, "prompt": prompt, "max_tokens": 1})
    assert (reply.status_code, reply.json()["error"]["param"]) == (400, param)
    assert words in reply.json()["error"]["message"]


@pytest.mark.parametrize("stream", [False, True])
def test_case_18_a_client_that_leaves_before_the_first_token(stream: bool, served: Served) -> None:
    def freed_s() -> float:
        body = {"model": MODEL, "prompt": f"{next(words)} colour " * 1900, "max_tokens": 9, "stream": stream}
        content = json.dumps(body).encode()
        with socket.create_connection((url.host, url.port or 80)) as connection:
            connection.sendall(head + b"Content-Length: %d\r\n\r\n" % len(content) + content)
            wait_for(lambda: served.model.running + served.model.waiting == 1, 60)
            assert not select.select([connection], [], [], 0)[0]  # in the midst of some seconds of prefill
        return wait_for(lambda: served.model.running + served.model.waiting == 0, 60)

    assert list(served.generate(Text("Hi"), 1))  # loaded
    head = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    url = httpx2.URL(served.client.info.url)
    words = iter(["red", "green", "blue", "brown", "black"] if stream else ["white", "pink", "grey", "gold", "dark"])
    assert at_best(freed_s, enough=1.0) < 1.0
