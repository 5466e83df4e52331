"""OpenAI request bodies: what is taken over, what is refused and by which name."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from edgellm.contracts.request import Message, Messages, Sampling, Text, Tokens
from edgellm.errors import InvalidRequest
from edgellm.server import openai_requests
from edgellm.server.openai_requests import Asked

USER = [{"role": "user", "content": "hi"}]


def chat(**fields: Any) -> Asked:
    return openai_requests.chat(json.dumps({"model": "m", "messages": USER} | fields).encode(), "id")


def completion(**fields: Any) -> Asked:
    return openai_requests.completion(json.dumps({"model": "m", "prompt": "hi"} | fields).encode(), "id")


def test_everything_supported_is_taken_over() -> None:
    asked = chat(
        temperature=0.5, top_p=0.8, top_k=40, seed=7, stop=["a", "b"], max_tokens=9, keep_alive=60, stream=True,
        stream_options={"include_usage": True},
    )  # fmt: skip
    request = asked.request
    assert request.sampling == Sampling(0.5, 0.8, 40, 7)
    assert (request.model, request.stop, request.max_tokens, request.keep_alive_s) == (
        "m",
        ("a", "b"),
        9,
        60.0,
    )
    assert (asked.stream, asked.include_usage) == (True, True)


def test_every_sampler_is_taken_over() -> None:
    fields: dict[str, Any] = {
        "temperature": 0.5, "top_p": 0.8, "top_k": 40, "seed": 7, "min_p": 0.05, "typical_p": 0.9,
        "repeat_penalty": 1.1,
        "repeat_last_n": -1, "presence_penalty": -2, "frequency_penalty": 0.5, "dry_multiplier": 0.8, "dry_base": 1.5,
        "dry_allowed_length": 3, "dry_last_n": 256, "xtc_probability": 0.5, "xtc_threshold": 0.15, "mirostat": 2,
        "mirostat_tau": 4, "mirostat_eta": 0.2,
    }  # fmt: skip
    wanted = Sampling(**fields, logit_bias={50: -100.0, 7: 1.5}, dry_breakers=("\n", "Ann:"))
    biases = {"50": -100, "7": 1.5}
    assert chat(**fields, logit_bias=biases, dry_breakers=["\n", "Ann:"]).request.sampling == wanted
    assert completion(**fields, logit_bias=biases, dry_breakers=["\n", "Ann:"]).request.sampling == wanted
    assert set(wanted.__struct_fields__) == {*fields, "logit_bias", "dry_breakers"}


def test_names_that_other_servers_have() -> None:
    theirs = chat(repetition_penalty=1.2, dry_penalty_last_n=9, dry_sequence_breakers=["x"])
    assert theirs.request.sampling == Sampling(repeat_penalty=1.2, dry_last_n=9, dry_breakers=("x",))


def test_several_answers_and_log_probabilities() -> None:
    one, asked = chat().request, chat(n=3, logprobs=True, top_logprobs=5, stream=True, drafts=False).request
    assert (one.n, one.best_of, one.logprobs, one.drafts) == (1, 0, None, True)
    assert (asked.n, asked.logprobs, asked.drafts) == (3, 5, False)
    assert chat(logprobs=True).request.logprobs == 0
    assert chat(logprobs=False, top_logprobs=0).request.logprobs is None
    best = completion(n=2, best_of=5, logprobs=0).request
    assert (best.n, best.best_of, best.logprobs) == (2, 5, 0)
    assert completion(n=2, best_of=2).request.best_of == 0
    assert completion(n=1, best_of=1, stream=True).request.best_of == 0


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"n": 3, "best_of": 2}, "best_of"),
        ({"best_of": 17}, "best_of"),
        ({"best_of": 2, "stream": True}, "best_of"),
        ({"logprobs": 21}, "logprobs"),
        ({"logprobs": True}, "logprobs"),
        ({"max_tokens": 0}, "max_tokens"),
    ],
)
def test_bad_values_of_completions(fields: dict[str, Any], param: str) -> None:
    with pytest.raises(InvalidRequest, match=param) as caught:
        completion(**fields)
    assert caught.value.param == param


def test_what_is_not_said_stays_open() -> None:
    request = chat().request
    assert (request.sampling, request.stop, request.max_tokens) == (Sampling(), (), None)


def test_roles_and_content_parts() -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    asked = chat(
        messages=[
            {"role": "developer", "content": "be brief"},
            {"role": "user", "content": parts, "name": "ann"},
            {"role": "assistant", "content": "yes", "refusal": None, "tool_calls": None},
            {"role": "tool", "content": "42", "tool_call_id": "x"},
        ]
    )
    assert asked.request.prompt == Messages(
        (
            Message("system", "be brief"),
            Message("user", "ab", "ann"),
            Message("assistant", "yes"),
            Message("tool", "42"),
        )
    )


@pytest.mark.parametrize(
    ("prompt", "expected"),
    [
        ("hi", Text("hi")),
        (["hi"], Text("hi")),
        ([1, 2], Tokens((1, 2))),
        ([[1, 2]], Tokens((1, 2))),
    ],
)
def test_prompts(prompt: Any, expected: object) -> None:
    assert completion(prompt=prompt).request.prompt == expected


def test_limits_of_length() -> None:
    assert chat(max_tokens=5, max_completion_tokens=8).request.max_tokens == 8
    assert completion().request.max_tokens == 16  # OpenAI's default for this endpoint
    assert completion(max_tokens=99).request.max_tokens == 99


def test_batch_work_can_be_sent_with_a_lower_priority() -> None:
    assert chat(priority=10).request.priority == 10
    assert chat().request.priority == 0


def test_a_preset_a_sliding_context_and_what_templates_read() -> None:
    request = chat(preset="code", context_overflow="slide").request
    assert (request.preset, request.sliding) == ("code", True)
    assert not chat(context_overflow="error").request.sliding
    assert completion(preset="maths", context_overflow="slide").request.sliding
    options = {"enable_thinking": False, "level": 3, "name": "x", "nothing": None}
    prompt = chat(chat_template_kwargs=options).request.prompt
    assert isinstance(prompt, Messages)
    assert prompt.options == {"enable_thinking": False, "level": 3, "name": "x"}


@pytest.mark.parametrize(
    ("fields", "options"),
    [
        ({"reasoning_effort": "high"}, {"reasoning_effort": "high"}),
        ({"reasoning_effort": "none"}, {"enable_thinking": False, "thinking": False}),
        (
            {"reasoning_effort": "none", "chat_template_kwargs": {"thinking": True}},
            {"enable_thinking": False, "thinking": True},
        ),
        ({"chat_template_kwargs": {}}, {}),
        (
            {"reasoning_effort": "high", "chat_template_kwargs": {f"n{number}": 1 for number in range(32)}},
            {"reasoning_effort": "high", **{f"n{number}": 1 for number in range(32)}},
        ),
    ],
)
def test_how_hard_to_think(fields: dict[str, Any], options: dict[str, Any]) -> None:
    prompt = chat(**fields).request.prompt
    assert isinstance(prompt, Messages)
    assert prompt.options == options


def test_top_k_minus_one_means_all() -> None:
    assert chat(top_k=-1).request.sampling.top_k == 0


def test_whole_numbers_may_be_written_as_floats() -> None:
    asked = chat(max_tokens=16.0, seed=-3.0, temperature=1, priority=0.0).request
    assert (asked.max_tokens, asked.sampling.seed, asked.sampling.temperature) == (16, -3, 1.0)
    assert isinstance(asked.max_tokens, int)
    assert completion(prompt=[1.0, 2]).request.prompt == Tokens((1, 2))


def test_a_stop_may_be_one_string() -> None:
    assert chat(stop="END").request.stop == ("END",)
    assert chat(stop=[]).request.stop == ()


def test_unknown_fields_and_neutral_values_pass() -> None:
    chat(
        user="u", store=False, metadata={"a": "b"}, service_tier="auto", parallel_tool_calls=True, x_future=[1],
        n=1, tools=[], tool_choice="auto", logprobs=False, top_logprobs=0, logit_bias={}, presence_penalty=0,
        frequency_penalty=0.0, response_format={"type": "text"}, modalities=["text"], repetition_penalty=1.0, min_p=0,
    )  # fmt: skip
    completion(n=1, best_of=1, echo=False, suffix="", logprobs=None)


@pytest.mark.parametrize(
    "fields",
    [
        {"tools": [{"type": "function", "function": {"name": "f"}}]},
        {"functions": [{"name": "f"}]},
        {"tool_choice": "required"},
        {"response_format": {"type": "json_object"}},
        {"modalities": ["text", "audio"]},
        {"audio": {"voice": "x"}},
        {"chat_template": "{{ 1 }}"},
        {"grammar": "root ::= x"},
        {"guided_json": {}},
        {"ignore_eos": True},
    ],
)
def test_case_12_what_would_change_the_answer_is_refused_by_name(fields: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequest, match="not supported yet") as caught:
        chat(**fields)
    assert caught.value.param == next(iter(fields))


@pytest.mark.parametrize("fields", [{"suffix": "x"}, {"echo": True}])
def test_the_same_for_completions(fields: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequest, match="not supported yet") as caught:
        completion(**fields)
    assert caught.value.param == next(iter(fields))


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"max_tokens": -1}, "max_tokens"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": 1.5}, "max_tokens"),
        ({"max_completion_tokens": 10**30}, "max_completion_tokens"),
        ({"temperature": -0.1}, "temperature"),
        ({"temperature": 2.1}, "temperature"),
        ({"temperature": "hot"}, "temperature"),
        ({"temperature": True}, "temperature"),
        ({"temperature": float("nan")}, "temperature"),
        ({"top_p": 0}, "top_p"),
        ({"top_p": float("inf")}, "top_p"),
        ({"top_k": -2}, "top_k"),
        ({"priority": 5000}, "priority"),
        ({"seed": 2**63}, "seed"),
        ({"seed": "x"}, "seed"),
        ({"stop": ["x"] * 1000}, "stop"),
        ({"stop": [""]}, "stop[0]"),
        ({"stop": ["x" * 1001]}, "stop[0]"),
        ({"stop": ""}, "stop"),
        ({"stop": 5}, "stop"),
        ({"stream": "yes"}, "stream"),
        ({"stream_options": {"include_usage": True}}, "stream_options"),
        ({"presence_penalty": 3}, "presence_penalty"),
        ({"frequency_penalty": -2.1}, "frequency_penalty"),
        ({"frequency_penalty": float("nan")}, "frequency_penalty"),
        ({"repeat_penalty": 0}, "repeat_penalty"),
        ({"repeat_penalty": 1e-320}, "repeat_penalty"),  # above 0, and yet the logits overflow
        ({"repetition_penalty": -1}, "repetition_penalty"),
        ({"repetition_penalty": 1.1, "repeat_penalty": 1.2}, "repetition_penalty"),
        ({"repeat_last_n": -2}, "repeat_last_n"),
        ({"repeat_last_n": 6.5}, "repeat_last_n"),
        ({"min_p": -0.1}, "min_p"),
        ({"min_p": 1.1}, "min_p"),
        ({"typical_p": 0}, "typical_p"),
        ({"typical_p": float("nan")}, "typical_p"),
        ({"dry_multiplier": -1}, "dry_multiplier"),
        ({"dry_base": 0.5}, "dry_base"),
        ({"dry_allowed_length": 0}, "dry_allowed_length"),
        ({"dry_last_n": -2}, "dry_last_n"),
        ({"dry_penalty_last_n": -2}, "dry_penalty_last_n"),
        ({"dry_breakers": "x"}, "dry_breakers"),
        ({"dry_breakers": [""]}, "dry_breakers[0]"),
        ({"dry_sequence_breakers": ["x"] * 33}, "dry_sequence_breakers"),
        ({"xtc_probability": 1.1}, "xtc_probability"),
        ({"xtc_threshold": -0.1}, "xtc_threshold"),
        ({"mirostat": 1}, "mirostat"),
        ({"mirostat": -2}, "mirostat"),
        ({"mirostat_tau": 0}, "mirostat_tau"),
        ({"mirostat_eta": 1.5}, "mirostat_eta"),
        ({"logit_bias": {"word": 1}}, "logit_bias"),
        ({"logit_bias": {"-1": 1}}, "logit_bias"),
        ({"logit_bias": {"5": 101}}, "logit_bias"),
        ({"logit_bias": {"5": "no"}}, "logit_bias"),
        ({"logit_bias": {"5": float("nan")}}, "logit_bias.5"),
        ({"logit_bias": {str(token): 1 for token in range(5000)}}, "logit_bias"),
        ({"n": 0}, "n"),
        ({"n": 17}, "n"),
        ({"n": 1.5}, "n"),
        ({"logprobs": 3}, "logprobs"),
        ({"top_logprobs": 3}, "top_logprobs"),
        ({"top_logprobs": 3, "logprobs": False}, "top_logprobs"),
        ({"top_logprobs": 21, "logprobs": True}, "top_logprobs"),
        ({"top_logprobs": -1, "logprobs": True}, "top_logprobs"),
        ({"drafts": "no"}, "drafts"),
        ({"preset": "poetry"}, "preset"),
        ({"context_overflow": "cut"}, "context_overflow"),
        ({"reasoning_effort": "much"}, "reasoning_effort"),
        ({"chat_template_kwargs": {"messages": "x"}}, "chat_template_kwargs"),
        ({"chat_template_kwargs": {"raise_exception": 1}}, "chat_template_kwargs"),
        ({"chat_template_kwargs": {"name\n": 1}}, "chat_template_kwargs"),
        ({"chat_template_kwargs": {"a b": 1}}, "chat_template_kwargs"),
        ({"chat_template_kwargs": {"a": "x" * 1001}}, "chat_template_kwargs.a"),
        ({"chat_template_kwargs": {"a": 2**64}}, "chat_template_kwargs.a"),
        ({"chat_template_kwargs": {"a": [1]}}, "chat_template_kwargs"),
        ({"chat_template_kwargs": {f"n{i}": i for i in range(33)}}, "chat_template_kwargs"),
        ({"model": ""}, "model"),
        ({"model": 3}, "model"),
        ({"messages": []}, "messages"),
        ({"messages": "hi"}, "messages"),
        ({"messages": [{"role": "user"}]}, "messages[0].content"),
        ({"messages": [{"content": "x"}]}, "messages[0].role"),
        ({"messages": [*USER, {"role": "wizard", "content": "x"}]}, "messages[1].role"),
        ({"messages": [{"role": "user", "content": 5}]}, "messages[0].content"),
        ({"messages": [{"role": "user", "content": [{"type": "text"}]}]}, "messages[0].content[0].text"),
        (
            {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]},
            "messages[0].content[0].type",
        ),
        (
            {"messages": [{"role": "assistant", "content": None, "tool_calls": [{}]}]},
            "messages[0].tool_calls",
        ),
    ],
)
def test_case_11_bad_values_are_refused_by_name(fields: dict[str, Any], param: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        chat(**fields)
    assert caught.value.param == param
    assert param in caught.value.message


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"context_overflow": "cut"}, "context_overflow must be error or slide"),
        ({"reasoning_effort": "much"}, "reasoning_effort must be high or low or medium or minimal or none or xhigh"),
    ],
)
def test_what_an_enumeration_takes_is_said(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidRequest, match=re.escape(message)):
        chat(**fields)


@pytest.mark.parametrize("prompt", [[], [[]], None, 5, [1, "a"], [1, True], [-1], [[1, -1]], ["a", "b"], [1.5]])
def test_bad_prompts_are_refused(prompt: Any) -> None:
    with pytest.raises(InvalidRequest) as caught:
        completion(prompt=prompt)
    assert caught.value.param is not None
    assert caught.value.param.startswith("prompt")


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b"null", b'{"model": "m"}', b'{"a": "\xff"}', b"[" * 100_000])
def test_what_is_no_request_is_refused(body: bytes) -> None:
    with pytest.raises(InvalidRequest):
        openai_requests.chat(body, "id")


@pytest.mark.parametrize("half", ["a\\ud83d", "a\\ud83dbcdefgh", "\\udc00", "\\ud83d\\ud83d"])
def test_half_a_surrogate_pair_is_named_by_its_place(half: str) -> None:
    body = '{"model": "m", "messages": [{"role": "user", "content": "' + half + '"}]}'
    with pytest.raises(InvalidRequest, match="half a surrogate pair") as caught:
        openai_requests.chat(body.encode(), "id")
    assert caught.value.param == "messages[0].content"
    with pytest.raises(InvalidRequest, match="half a surrogate pair") as caught:
        openai_requests.chat(('{"' + half + '": "' + half + '"}').encode(), "id")
    (caught.value.param or "").encode()  # the field's own name may be as bad


def test_no_message_repeats_what_the_caller_said() -> None:
    for fields in ({"temperature": "secret"}, {"messages": [{"role": "secret", "content": "secret"}]}):
        with pytest.raises(InvalidRequest) as caught:
            chat(**fields)
        assert "secret" not in caught.value.message
