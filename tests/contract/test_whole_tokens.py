"""Tokens that stand as a whole are found as llama.cpp finds them."""

from __future__ import annotations

import ctypes
from pathlib import Path

import pytest
from edgellm_llamacpp.plugin import LlamaCppPlugin
from hypothesis import given
from hypothesis import strategies as st

from edgellm.contracts.engine import Tokenizer
from edgellm.formats.gguf import read_model
from edgellm.formats.whole_tokens import WholeTokens

PARTS = ("<", "b>", "</", "<b>", "</b>", "\n", "\n\n", "  ", "\t", "a", "é", "[", "|>", "<|", "un", "used")


@pytest.fixture(scope="module", params=["smollm2", "gemma3"])
def tokenizer(request: pytest.FixtureRequest) -> Tokenizer:
    path: Path = request.getfixturevalue(request.param)
    return LlamaCppPlugin().tokenizer(read_model(path))


@given(st.data(), st.booleans())
def test_as_llama_cpp_does_it(tokenizer: Tokenizer, data: st.DataObject, special: bool) -> None:
    names = st.sampled_from(tokenizer.special_texts[:40])
    text = "".join(data.draw(st.lists(st.sampled_from(PARTS) | names, max_size=30)))
    assert tokenizer.encode(text, special=special) == _by_llama_cpp(tokenizer, text, special)


def _by_llama_cpp(tokenizer: Tokenizer, text: str, special: bool) -> list[int]:
    api, vocabulary = tokenizer._api, tokenizer._vocabulary  # type: ignore[attr-defined]
    data = text.encode()
    ids = (ctypes.c_int32 * (len(data) + 8))()
    count = vocabulary.ask(api.llama_tokenize, data, len(data), ids, len(ids), False, special)
    return ids[:count]


def test_some_take_the_spaces_beside_them() -> None:
    """The ends of turns of Phi 3 do, after them; masks, before them."""
    tokens = WholeTokens([(1, b"<end>"), (2, b"<mask>"), (3, b"\n")], strips_before={2}, strips_after={1})
    assert tokens.cut(" a <end> \n b \t<mask> c\n") == [" a ", 1, "b", 2, " c", 3]


def test_the_longest_is_found_wherever_it_begins() -> None:
    assert WholeTokens([(1, b"ab"), (2, b"bcd"), (3, b"\xff"), (4, b"")]).cut("abcdab") == ["a", 2, 1]
