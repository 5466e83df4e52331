"""Converted tokenizers give the ids of the originals, over texts in many scripts."""

from __future__ import annotations

import json
import unicodedata
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from convert import llama
from convert.corpus import TEXTS
from convert.tokenizers_made import bpe_as_json, byte_level, save_tokenizer, trained, unigram_as_json, wordpiece
from edgellm.contracts.engine import Tokenizer
from edgellm.library.convert import gguf_file
from edgellm.library.convert.folder import Folder
from edgellm.library.convert.tokenizers import pre, sentencepiece
from edgellm.library.convert.tokenizers.read import read_vocabulary
from edgellm.library.convert.tokenizers.special import templates
from edgellm.library.convert.tokenizers.vocabulary import Vocabulary

KINDS = sorted(set(pre._KNOWN.values()))
# llama.cpp's expressions for these know letters and not the marks that follow them in Indic and other scripts.
BLIND_TO_MARKS = ("gpt-4o", "tekken")
BYTES: dict[str, Any] = {
    "byte_fallback": True,
    "normalization_rule_name": "identity",
    "remove_extra_whitespaces": False,
}
ROLES = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}


def folder_of(path: Path, **config: Any) -> Folder:
    """A folder with a tokenizer already in it becomes a model's, without weights."""
    (path / "model.safetensors").write_bytes((2).to_bytes(8, "little") + b"{}")
    (path / "config.json").write_text(json.dumps(config))
    return Folder(path)


def converted(path: Path, rows: int, **config: Any) -> tuple[Tokenizer, Vocabulary]:
    """The vocabulary alone as a GGUF file, opened by the engine; and what went into it."""
    folder = folder_of(path, **config)
    vocabulary = read_vocabulary(folder, rows)
    keys: dict[str, Any] = {
        "general.architecture": "llama",
        "llama.context_length": 64,
        "llama.embedding_length": 8,
        "llama.block_count": 1,
        "llama.attention.head_count": 1,
        "llama.attention.layer_norm_rms_epsilon": 1e-5,
        "llama.feed_forward_length": 8,
    }
    file = path / "vocabulary.gguf"
    file.write_bytes(gguf_file.header(keys | vocabulary.metadata() | templates(folder), []))
    return llama.tokenizer(file), vocabulary


def same_ids(original: Callable[[str], list[int]], ours: Tokenizer, texts: Sequence[str] = TEXTS) -> None:
    for text in texts:
        assert ours.encode(text, special=False) == original(text), text


def as_likely(original: Callable[[str], list[int]], ours: Tokenizer, scores: Any) -> None:
    """The same pieces; two cuts may be equally likely: "((" "(" and "(" "((". `scores`: SentencePiece's own model."""

    def score(ids: list[int]) -> float:
        return float(sum(scores.get_score(token) for token in ids))

    for text in TEXTS:
        ids, found = original(text), ours.encode(text, special=False)
        assert found == ids or (sorted(found) == sorted(ids) and score(found) == pytest.approx(score(ids))), text


def plain(tokenizer: Any) -> Callable[[str], list[int]]:
    """Without what surrounds a text."""
    return lambda text: list(tokenizer.encode(text, add_special_tokens=False).ids)


def has_marks(text: str) -> bool:
    return any(unicodedata.category(letter) in ("Mn", "Mc") for letter in unicodedata.normalize("NFC", text))


@pytest.mark.parametrize("kind", KINDS)
def test_byte_level_bpe(kind: str, tmp_path: Path) -> None:
    original = byte_level(kind, 900)
    save_tokenizer(original, tmp_path, {"bos_token": "<|bos|>", "eos_token": "<|eos|>"})
    ours, vocabulary = converted(tmp_path, original.get_vocab_size())
    assert vocabulary.pre == kind
    texts = [text for text in TEXTS if kind not in BLIND_TO_MARKS or not has_marks(text)]
    assert len(texts) > 20
    same_ids(plain(original), ours, texts)
    decomposed = unicodedata.normalize("NFD", TEXTS[1])
    assert ours.encode(decomposed, special=False) == plain(original)(decomposed)
    text = "one<tool>two<|im_end|>\nthree"
    assert ours.encode(text, special=True) == plain(original)(text)


def test_word_pieces(tmp_path: Path) -> None:
    original = wordpiece(1200)
    save_tokenizer(original, tmp_path, {"cls_token": "[CLS]", "sep_token": "[SEP]", "unk_token": "[UNK]"})
    ours, vocabulary = converted(tmp_path, original.get_vocab_size())
    assert vocabulary.model == "bert"
    same_ids(plain(original), ours)
    assert original.encode("x").ids == [ours.bos, *ours.encode("x", special=False), vocabulary.ids["[SEP]"]]


@pytest.mark.parametrize("prefix", [True, False])
def test_sentencepiece_bpe(prefix: bool, tmp_path: Path) -> None:
    original = trained("bpe", 900, tmp_path, add_dummy_prefix=prefix, **BYTES)
    ours, vocabulary = converted(tmp_path, original.get_piece_size())
    assert (vocabulary.model, vocabulary.extra["add_space_prefix"]) == ("llama", prefix)
    same_ids(original.encode, ours)


@pytest.mark.parametrize("prefix", [True, False])
def test_sentencepiece_bpe_from_json_alone(prefix: bool, tmp_path: Path) -> None:
    model = trained("bpe", 900, tmp_path, add_dummy_prefix=prefix, **BYTES)
    (tmp_path / "tokenizer.model").unlink()
    original = bpe_as_json(model, prefix=prefix)
    save_tokenizer(original, tmp_path, ROLES)
    ours, vocabulary = converted(tmp_path, original.get_vocab_size())
    assert (vocabulary.model, vocabulary.extra["add_space_prefix"]) == ("llama", prefix)
    same_ids(plain(original), ours)


def test_sentencepiece_unigram(tmp_path: Path) -> None:
    original = trained("unigram", 900, tmp_path)
    ours, vocabulary = converted(tmp_path, original.get_piece_size())
    assert vocabulary.model == "t5"

    as_likely(original.encode, ours, original)


def test_sentencepiece_unigram_from_json_alone(tmp_path: Path) -> None:
    model = trained("unigram", 900, tmp_path)
    charsmap = sentencepiece._parse(tmp_path / "tokenizer.model")[2][2]
    (tmp_path / "tokenizer.model").unlink()
    original = unigram_as_json(model, charsmap)
    save_tokenizer(original, tmp_path, ROLES)
    ours, _ = converted(tmp_path, original.get_vocab_size())
    as_likely(plain(original), ours, model)
