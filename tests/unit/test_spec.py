"""Sampling as asked becomes a spec with every value said; what an engine does not know is refused by name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest
from fake_runner import END, VOCABULARY, FakeRunner, FakeTokenizer

from edgellm.contracts.request import GenerateRequest, Sampling, Text
from edgellm.contracts.runner import RunnerInfo, SampleSpec
from edgellm.contracts.simple import ByteTokenizer
from edgellm.engine.breakers import breaker_tokens
from edgellm.engine.spec import sample_spec
from edgellm.errors import InvalidRequest

KNOWS_ALL = FakeRunner().info
KNOWS_LITTLE = RunnerInfo("simple", 100, 100, 2, 10)


def spec(info: RunnerInfo = KNOWS_ALL, logprobs: int | None = None, **sampling: Any) -> SampleSpec:
    request = GenerateRequest(id="1", model="m", prompt=Text("x"), sampling=Sampling(**sampling), logprobs=logprobs)
    return sample_spec(request, info, FakeTokenizer(), 3)


def test_what_is_said_is_taken_over_and_the_rest_is_neutral() -> None:
    assert spec(min_p=0.1, logprobs=2) == SampleSpec(min_p=0.1, choice=3, logprobs=2)
    assert spec(top_k=5, seed=9, logit_bias={7: -1.0}) == SampleSpec(top_k=5, seed=9, logit_bias={7: -1.0}, choice=3)


@pytest.mark.parametrize(
    ("field", "value", "neutral"),
    [
        ("min_p", 0.1, 0.0),
        ("typical_p", 0.5, 1.0),
        ("logit_bias", {1: 1.0}, {}),
        ("repeat_penalty", 1.1, 1.0),
        ("presence_penalty", -0.5, 0.0),
        ("frequency_penalty", 0.5, 0.0),
        ("dry_multiplier", 0.8, 0.0),
        ("xtc_probability", 0.5, 0.0),
        ("mirostat", 2, 0),
    ],
)
def test_an_engine_that_knows_less_refuses_by_name(field: str, value: Any, neutral: Any) -> None:
    with pytest.raises(InvalidRequest, match=f"the simple engine has no sampler for {field}") as caught:
        spec(KNOWS_LITTLE, **{field: value})
    assert caught.value.param == field
    assert spec(KNOWS_LITTLE, **{field: neutral}) == SampleSpec(choice=3)
    assert getattr(spec(**{field: value}), field) == value


def test_who_refuses_is_called_as_people_call_it() -> None:
    with pytest.raises(InvalidRequest, match=r"the llama\.cpp engine has no sampler for min_p"):
        spec(msgspec.structs.replace(KNOWS_LITTLE, engine="llamacpp"), min_p=0.1)


def test_log_probabilities_are_refused_where_there_are_none() -> None:
    with pytest.raises(InvalidRequest, match="gives no log probabilities") as caught:
        spec(KNOWS_LITTLE, logprobs=0)
    assert caught.value.param == "logprobs"


@pytest.mark.parametrize("token", [-1, VOCABULARY, 10**9])
def test_a_bias_for_a_token_that_does_not_exist(token: int) -> None:
    assert spec(logit_bias={VOCABULARY - 1: 1.0}).logit_bias == {END: 1.0}
    with pytest.raises(InvalidRequest, match=f"logit_bias names token {token}; .* 0 to {VOCABULARY - 1}") as caught:
        spec(logit_bias={5: 1.0, token: 1.0})
    assert caught.value.param == "logit_bias"


class Words(ByteTokenizer):
    """Tokens of several bytes; counts how often it is read."""

    pieces = (b"a", b"b\n", b"::", b" \n\n", b'"', b"*", b"\xe2\x80\xa6", b"end")
    vocabulary_size = len(pieces)

    def __init__(self) -> None:
        self.reads = 0

    def token_bytes(self, token: int) -> bytes:
        self.reads += 1
        return self.pieces[token]


def test_breakers_are_the_tokens_that_contain_one() -> None:
    words = Words()
    on = Sampling(dry_multiplier=0.8)
    assert breaker_tokens(on, words) == {1, 2, 3, 4, 5}
    assert breaker_tokens(Sampling(dry_multiplier=0.8, dry_breakers=("n", "…")), words) == {6, 7}
    assert breaker_tokens(Sampling(dry_multiplier=0.8, dry_breakers=()), words) == frozenset()
    read = words.reads
    assert breaker_tokens(on, words) == {1, 2, 3, 4, 5}
    assert words.reads == read
    assert breaker_tokens(Sampling(dry_breakers=("a",)), words) == frozenset()  # DRY is off
    assert spec(dry_multiplier=0.8).dry_breakers == {ord(text) for text in '\n:"*'}


def test_a_breaker_that_no_token_contains_is_refused() -> None:
    with pytest.raises(InvalidRequest, match=r"dry_breakers\[1\] is not contained in any single") as caught:
        breaker_tokens(Sampling(dry_multiplier=0.8, dry_breakers=("a", "ab")), Words())
    assert caught.value.param == "dry_breakers[1]"


def test_every_field_is_documented() -> None:
    page = (Path(__file__).parent.parent.parent / "docs" / "sampling.md").read_text("utf-8")
    assert [field for field in Sampling.__struct_fields__ if f"`{field}`" not in page] == []
