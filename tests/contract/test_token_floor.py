"""The fewest tokens that a text can be are never more than it is; and not so few that they say nothing."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import vocabularies
from convert import llama
from edgellm_llamacpp.plugin import LlamaCppPlugin
from edgellm_torch.plugin import TorchPlugin
from edgellm_torch.splitting import KNOWN
from edgellm_torch.tokenizer import TorchTokenizer
from hypothesis import given
from hypothesis import strategies as st

from edgellm.contracts.engine import Tokenizer
from edgellm.formats.gguf import read_model


@pytest.fixture(scope="module", params=["smollm2", "gemma3"])
def tokenizers(request: pytest.FixtureRequest) -> list[Tokenizer]:
    model = read_model(request.getfixturevalue(request.param))
    return [LlamaCppPlugin().tokenizer(model), TorchPlugin().tokenizer(model)]


def check(tokenizer: Tokenizer, text: str) -> None:
    fewest = tokenizer.fewest(text)
    assert all(fewest <= len(tokenizer.encode(text, special=special)) for special in (False, True)), text


@given(st.data())
def test_of_any_text(tokenizers: list[Tokenizer], data: st.DataObject) -> None:
    one = tokenizers[0]
    tokens = st.integers(0, one.vocabulary_size - 1).map(one.token_text) | st.sampled_from(one.special_texts)
    units = st.lists(st.text(max_size=8) | tokens, max_size=6).map("".join)
    text = data.draw(units) * data.draw(st.integers(1, 40)) + data.draw(units)
    for tokenizer in tokenizers:
        check(tokenizer, text)


def test_of_the_longest_tokens(tokenizers: list[Tokenizer]) -> None:
    one = tokenizers[0]
    texts = sorted(map(one.token_text, range(one.vocabulary_size)), key=lambda text: -len(text.encode()))
    for text in texts[:300]:
        for tokenizer in tokenizers:
            check(tokenizer, 20 * text)


def test_of_one_character_it_says_enough(tokenizers: list[Tokenizer]) -> None:
    for tokenizer in tokenizers:
        for text in ("x", "7", "é", "漢", "🙂"):
            assert tokenizer.fewest(text * 100_000) * 25 >= len(tokenizer.encode(text * 100_000, special=False))


def made(folder: Path) -> Iterator[Path]:
    for number, pre in enumerate(KNOWN):
        yield vocabularies.write(folder / f"{number}.gguf", vocabularies.byte_pairs(), pre)
    yield vocabularies.write(folder / "sentencepiece.gguf", vocabularies.sentencepiece(), "default")
    yield vocabularies.write(folder / "wordpiece.gguf", vocabularies.wordpiece(), "default")


def test_of_every_kind_of_vocabulary(tmp_path: Path) -> None:
    for path in made(tmp_path):
        for tokenizer in (llama.tokenizer(path), TorchTokenizer(read_model(path))):
            for text in vocabularies.corpus():
                check(tokenizer, text)


def test_of_a_file_that_is_gone_nothing_is_said(tmp_path: Path) -> None:
    path = vocabularies.write(tmp_path / "v.gguf", vocabularies.byte_pairs(), "default")
    tokenizers = [llama.tokenizer(path), TorchTokenizer(read_model(path))]
    path.unlink()
    assert [tokenizer.fewest("x" * 1000) for tokenizer in tokenizers] == [0, 0]


def test_what_may_get_lost_counts_for_nothing(tmp_path: Path) -> None:
    """A byte without a token, in byte-level BPE; any word that is not known, in WordPiece."""
    byte_pairs = vocabularies.byte_pairs()
    gone = byte_pairs.tokens.index("x")
    tokens = [*byte_pairs.tokens[:gone], "[gone]", *byte_pairs.tokens[gone + 1 :]]
    for one, text in ((byte_pairs._replace(tokens=tokens), "x"), (vocabularies.wordpiece(), "\ufffd")):
        path = vocabularies.write(tmp_path / "v.gguf", one, "default")
        for tokenizer in (llama.tokenizer(path), TorchTokenizer(read_model(path))):
            check(tokenizer, 1000 * text)
            assert tokenizer.fewest(1000 * text) == 0
