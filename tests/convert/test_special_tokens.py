"""Tokens with a role, ends of generation, what surrounds a text, chat templates."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from edgellm_llamacpp.native import library

from convert.corpus import TEXTS
from convert.test_tokenizers import converted, folder_of, plain, same_ids
from convert.tokenizers_made import byte_level, save_tokenizer
from edgellm.library.convert.tokenizers.special import templates


def made(path: Path, config: dict[str, Any], *, start: str | None = None, **generation: Any) -> Any:
    save_tokenizer(byte_level("llama-bpe", 700, start=start), path, config)
    (path / "generation_config.json").write_text(json.dumps(generation))
    return converted(path, 720)[0]


def test_every_end_of_generation_config_ends_an_answer(tmp_path: Path) -> None:
    """0 is <|bos|>, 1 <|eos|>, 2 <|im_end|>: none of the first two is known to the engine by its text."""
    ours = made(tmp_path, {"bos_token": None, "eos_token": "<|im_end|>"}, eos_token_id=[2, 1])
    assert ours.eos == 2
    assert ours.end_of_generation == {1, 2}


def test_two_unknown_ends_beside_the_first(tmp_path: Path) -> None:
    tool = byte_level("llama-bpe", 700).token_to_id("<tool>")
    ours = made(tmp_path, {"eos_token": "<|im_end|>"}, eos_token_id=[2, 1, tool])
    assert ours.end_of_generation == {1, 2, tool}


@pytest.mark.parametrize(
    ("config", "start", "adds"),
    [
        ({"bos_token": "<|bos|>"}, "<|bos|>", True),
        ({"bos_token": "<|bos|>"}, None, False),
        ({"bos_token": "<|bos|>", "add_bos_token": True}, None, True),
        ({"bos_token": "<|bos|>", "add_bos_token": False}, None, False),
        ({"bos_token": {"content": "<|bos|>", "lstrip": False}}, "<|bos|>", True),
        ({}, "<|bos|>", True),
    ],
)
def test_who_begins_with_a_token(config: dict[str, Any], start: str | None, adds: bool, tmp_path: Path) -> None:
    ours = made(tmp_path, {"eos_token": "<|eos|>"} | config, start=start)
    assert ours.adds_bos is adds
    if config or start:
        assert ours.bos == 0


def test_rows_without_a_token_are_filled_and_tokens_without_a_row_dropped(tmp_path: Path) -> None:
    original = byte_level("gpt-2", 500)
    save_tokenizer(original, tmp_path, {"eos_token": "<|eos|>"})
    longer, vocabulary = converted(tmp_path, 600)
    assert longer.vocabulary_size == 600
    assert vocabulary.tokens[599] == "[PAD599]"
    same_ids(plain(original), longer, TEXTS[:3])
    shorter, _ = converted(tmp_path, original.get_vocab_size() - 1)  # the last is <tool>
    assert shorter.vocabulary_size == original.get_vocab_size() - 1
    assert library().log.problem() is None


def test_chat_templates(tmp_path: Path) -> None:
    named = [{"name": "default", "template": "plain"}, {"name": "tool_use", "template": "tools"}, {"name": "../x"}]
    config: dict[str, Any] = {"eos_token": "<|eos|>", "chat_template": named}
    save_tokenizer(byte_level("gpt-2", 500), tmp_path, config)
    assert templates(folder_of(tmp_path)) == {
        "tokenizer.chat_template": "plain",
        "tokenizer.chat_template.tool_use": "tools",
        "tokenizer.chat_templates": ["tool_use"],
    }
    (tmp_path / "chat_template.jinja").write_text("from the file")
    assert templates(folder_of(tmp_path)) == {"tokenizer.chat_template": "from the file"}
