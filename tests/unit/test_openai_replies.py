"""Several choices, log probabilities and thoughts in OpenAI's forms: whole and streamed say the same."""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import AsyncIterator, Sequence
from typing import Any

import openai
import pytest
from fake_service import FakeService, serving
from openai.types import Completion
from openai.types.chat import ChatCompletion, ChatCompletionChunk

from edgellm.contracts.events import (
    Alternative,
    ChoiceDone,
    Event,
    Finished,
    ReasoningDelta,
    Slid,
    Started,
    TextDelta,
    Timings,
    TokenInfo,
    Usage,
)
from edgellm.contracts.request import GenerateRequest, Text
from edgellm.server.openai_replies import Kind, Reply

START = Started(7, 3, 42)
END = Finished(Usage(7, 9, 3), Timings(0.01, 0.1, 0.4, 0.51, drafted=8, accepted=5))
TWO: tuple[Event, ...] = (
    START,
    TextDelta("Hel", 1),
    TextDelta("By", 0),
    TextDelta("lo", 1),
    ChoiceDone("length", 1),
    TextDelta("e", 0),
    ChoiceDone("stop", 0),
    END,
)


def info(raw: bytes, logprob: float, *top: tuple[bytes, float]) -> TokenInfo:
    return TokenInfo(1, raw, logprob, tuple(Alternative(2, other, value) for other, value in top))


# The é comes in two tokens, its text with the second; the end is a control token that adds no text.
LIKELY: tuple[Event, ...] = (
    START,
    TextDelta("caf", tokens=(info(b"caf", -0.5, (b"caf", -0.5), (b"Caf", -1.0)),)),
    TextDelta("", tokens=(info(b"\xc3", -0.25, (b"\xc3", -0.25), (b" ", -math.inf)),)),
    TextDelta("é", tokens=(info(b"\xa9", -0.125, (b"\xa9", -0.125), (b"\xa8", -4.0)),)),
    TextDelta(" au", tokens=(info(b" au", -2.0, (b" ", -0.5), (b" au", -2.0)), info(b"</s>", -0.1, (b"</s>", -0.1)))),
    ChoiceDone("stop"),
    END,
)


def reply(kind: Kind, **fields: Any) -> Reply:
    request = GenerateRequest(id="id-1", model="m", prompt=Text("x"), **fields)
    return Reply(kind, request, "m:latest", "fp_1")


async def _each(events: Sequence[Event]) -> AsyncIterator[Event]:
    for event in events:
        yield event


def whole(kind: Kind, events: Sequence[Event], **fields: Any) -> Any:
    return json.loads(asyncio.run(reply(kind, **fields).whole(_each(events))))


def chunks(kind: Kind, events: Sequence[Event], usage: bool = False, **fields: Any) -> list[Any]:
    async def collect() -> list[bytes]:
        return [piece async for piece in reply(kind, **fields).stream(_each(events), usage)]

    *found, done = [piece.decode().removeprefix("data: ").strip() for piece in asyncio.run(collect())]
    assert done == "[DONE]"
    return [json.loads(piece) for piece in found]


def test_two_choices_whole() -> None:
    body = whole("chat", TWO, n=2)
    answer = ChatCompletion.model_validate(body, strict=True)
    assert [choice.index for choice in answer.choices] == [0, 1]
    assert [choice.message.content for choice in answer.choices] == ["Bye", "Hello"]
    assert [choice.finish_reason for choice in answer.choices] == ["stop", "length"]
    assert answer.usage is not None
    assert answer.usage.completion_tokens == 9
    assert [choice["text"] for choice in whole("completion", TWO, n=2)["choices"]] == ["Bye", "Hello"]


@pytest.mark.parametrize("usage", [False, True])
def test_two_choices_streamed(usage: bool) -> None:
    """A first chunk each that says who speaks, an end each, and the usage once."""
    found = chunks("chat", TWO, usage, n=2)
    for chunk in found:
        ChatCompletionChunk.model_validate(chunk, strict=True)
    if usage:
        assert found[-1]["choices"] == []
        assert found.pop()["usage"]["completion_tokens"] == 9
        assert all(chunk["usage"] is None for chunk in found)
    pieces = [chunk["choices"][0] for chunk in found]
    assert [(piece["index"], piece["delta"]) for piece in pieces[:2]] == [
        (0, {"role": "assistant", "content": ""}),
        (1, {"role": "assistant", "content": ""}),
    ]
    for index, text, reason in ((0, "Bye", "stop"), (1, "Hello", "length")):
        mine = [piece for piece in pieces if piece["index"] == index]
        assert "".join(piece["delta"].get("content", "") for piece in mine) == text
        assert [piece["finish_reason"] for piece in mine] == [None] * (len(mine) - 1) + [reason]
        assert mine[-1]["delta"] == {}
    assert [("timings" in chunk) for chunk in found] == [False] * (len(found) - 1) + [True]


def test_rates_count_what_was_drafted_and_all_that_was_generated() -> None:
    timings = whole("completion", TWO, n=2, best_of=4)["timings"]
    assert (timings["drafted"], timings["accepted"]) == (8, 5)
    assert timings["tokens_per_s"] == 12.5  # nine, less the first of four choices, in 0.4 s
    assert whole("completion", TWO, n=2)["timings"]["tokens_per_s"] == 17.5


def test_log_probabilities_of_a_chat() -> None:
    answer = ChatCompletion.model_validate(whole("chat", LIKELY, logprobs=2), strict=True)
    likely = answer.choices[0].logprobs
    assert likely is not None
    assert likely.content is not None
    assert [entry.token for entry in likely.content] == ["caf", "\\xc3", "\\xa9", " au", "</s>"]
    assert [entry.logprob for entry in likely.content] == [-0.5, -0.25, -0.125, -2.0, -0.1]
    assert bytes(byte for entry in likely.content[:4] for byte in entry.bytes or ()).decode() == "café au"
    assert [other.token for other in likely.content[3].top_logprobs] == [" ", " au"]
    assert likely.content[1].top_logprobs[1].logprob == -9999.0
    assert answer.choices[0].message.content == "café au"


def test_log_probabilities_of_a_completion() -> None:
    answer = Completion.model_validate(whole("completion", LIKELY, logprobs=2), strict=True)
    likely = answer.choices[0].logprobs
    assert likely is not None
    assert likely.tokens == ["caf", "bytes:\\xc3", "bytes:\\xa9", " au", "</s>"]
    assert likely.token_logprobs == [-0.5, -0.25, -0.125, -2.0, -0.1]
    assert likely.text_offset == [0, 3, 3, 4, 7]
    assert likely.top_logprobs is not None
    assert likely.top_logprobs[0] == {"caf": -0.5, "Caf": -1.0}
    assert likely.top_logprobs[3] == {" au": -2.0, " ": -0.5}


@pytest.mark.parametrize("kind", ["chat", "completion"])
def test_streamed_log_probabilities_joined_are_the_whole_ones(kind: Kind) -> None:
    expected = whole(kind, LIKELY, logprobs=2)["choices"][0]["logprobs"]
    joined: dict[str, list[Any]] = {}
    for chunk in chunks(kind, LIKELY, logprobs=2):
        for name, values in (chunk["choices"][0]["logprobs"] or {}).items():
            joined.setdefault(name, []).extend(values or [])
    assert {name: values or None for name, values in joined.items()} == expected


def test_no_log_probabilities_where_none_were_asked_for() -> None:
    assert whole("chat", LIKELY)["choices"][0]["logprobs"] is None
    nothing = (START, ChoiceDone("stop"), END)
    assert whole("chat", nothing, logprobs=0)["choices"][0]["logprobs"] == {"content": [], "refusal": None}
    bare = (START, TextDelta("a", tokens=(info(b"a", -1.0),)), ChoiceDone("stop"), END)
    assert whole("chat", bare, logprobs=0)["choices"][0]["logprobs"]["content"][0]["top_logprobs"] == []
    assert whole("completion", bare, logprobs=0)["choices"][0]["logprobs"]["top_logprobs"] == [None]


def test_thoughts_have_fields_of_their_own() -> None:
    events = (
        START,
        ReasoningDelta("Hm", tokens=(info(b"Hm", -1.0),)),
        ReasoningDelta("m."),
        TextDelta("Yes", tokens=(info(b"Yes", -2.0),)),
        Slid(100),
        Slid(28),
        ChoiceDone("stop"),
        END,
    )
    body = whole("chat", events, logprobs=0)
    choice = body["choices"][0]
    assert choice["message"] == {"role": "assistant", "content": "Yes", "refusal": None, "reasoning_content": "Hmm."}
    assert [entry["token"] for entry in choice["logprobs"]["content"]] == ["Yes"]
    assert [entry["token"] for entry in choice["logprobs"]["reasoning_content"]] == ["Hm"]
    assert body["dropped_tokens"] == 128
    found = chunks("chat", events, logprobs=0)
    assert [chunk["choices"][0]["delta"] for chunk in found[1:4]] == [
        {"reasoning_content": "Hm"},
        {"reasoning_content": "m."},
        {"content": "Yes"},
    ]
    assert found[-1]["dropped_tokens"] == 128
    assert whole("completion", events)["choices"][0]["text"] == "Hmm.Yes"


def test_through_the_official_client() -> None:
    service = FakeService(TWO)
    with serving(service) as server, openai.OpenAI(base_url=f"{server.url}/v1", api_key="x", max_retries=0) as client:
        answer = client.chat.completions.create(
            model="fake", messages=[{"role": "user", "content": "hi"}], n=2, logit_bias={"50": -100}, presence_penalty=1
        )
        assert [choice.message.content for choice in answer.choices] == ["Bye", "Hello"]
        asked = service.requests[0]
        assert (asked.n, asked.sampling.logit_bias, asked.sampling.presence_penalty) == (2, {50: -100.0}, 1.0)
        service.script = LIKELY
        texts, likely = "", []
        for chunk in client.completions.create(model="fake", prompt="x", logprobs=2, stream=True):
            texts += chunk.choices[0].text
            likely += (chunk.choices[0].logprobs.tokens or []) if chunk.choices[0].logprobs else []
        assert (texts, len(likely)) == ("café au", 5)
        with pytest.raises(openai.BadRequestError, match="n must be a whole number from 1 to 16") as caught:
            client.completions.create(model="fake", prompt="x", n=17, stream=True)
        assert caught.value.param == "n"
