"""Vocabularies of GGUF files: read as they are, refused when their lists do not agree."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import malformed
import pytest
from gguf_files import BOOL, F32, F64, I32, STRING, TENSORS, U32, Key, array, build, key

from edgellm.errors import BadModelFile
from edgellm.formats import vocabulary as v
from edgellm.formats.gguf import read_model
from edgellm.formats.vocabulary import read_vocabulary

WORDS = [f"word{number}" for number in range(200)]  # more than a header keeps
ARCH = key("general.architecture", STRING, "llama")


def ggml(name: str, kind: int, value: Any) -> Key:
    full = f"tokenizer.ggml.{name}"
    return array(full, kind, value) if isinstance(value, list) else key(full, kind, value)


def file(folder: Path, *keys: Key) -> Path:
    path = folder / "model.gguf"
    path.write_bytes(build([ARCH, *keys], TENSORS))
    return path


def words(tokens: Sequence[str | bytes], *more: Key) -> list[Key]:
    return [ggml("model", STRING, "gpt2"), ggml("tokens", STRING, list(tokens)), *more]


def test_all_that_a_file_says(tmp_path: Path) -> None:
    types = [v.CONTROL, v.USER_DEFINED, v.BYTE, 7, -1, *[v.NORMAL] * 195]
    scores = [-float(number) for number in range(200)]
    path = file(
        tmp_path,
        *words(WORDS, ggml("token_type", I32, types), ggml("scores", F32, scores), ggml("pre", STRING, "qwen2")),
        ggml("merges", STRING, ["a b", "Ġ c"]),
        ggml("bos_token_id", U32, 3),
        ggml("eos_token_id", U32, 200),
        ggml("add_bos_token", BOOL, False),
        key("tokenizer.chat_template", STRING, "{{ messages }}"),
    )
    found = read_vocabulary(path)
    assert (found.model, found.pre, found.architecture) == ("gpt2", "qwen2", "llama")
    assert found.tokens == [word.encode() for word in WORDS]
    assert found.types == [v.CONTROL, v.USER_DEFINED, v.BYTE, v.UNDEFINED, v.UNDEFINED, *[v.NORMAL] * 195]
    assert found.scores == scores
    assert found.merges == [b"a b", "Ġ c".encode()]
    assert found.roles == {"bos": 3}  # there is no token 200
    assert found.flag("add_bos_token") is False
    assert found.flag("add_eos_token") is None
    assert found.chat_template == "{{ messages }}"
    assert "tokenizer.ggml.tokens" not in read_model(path).metadata  # nor is it kept anywhere else


@pytest.mark.parametrize("count", [1, 64, 65, 1024, 1025, 5000])
def test_short_and_long_lists(count: int, tmp_path: Path) -> None:
    """Headers keep short lists and walk over long ones: both are found."""
    tokens = [f"t{number}" for number in range(count)]
    path = file(tmp_path, *words(tokens, ggml("scores", F32, [0.25] * count), ggml("merges", STRING, tokens)))
    found = read_vocabulary(path)
    assert found.tokens == found.merges == [token.encode() for token in tokens]
    assert found.scores == [0.25] * count
    assert found.types == [v.NORMAL] * count


def test_tokens_are_bytes(tmp_path: Path) -> None:
    tokens = [b"\xff\xfe", b"\xc3", b"\0", "é".encode(), b"", b"x" * v.LARGEST_TOKEN]
    found = read_vocabulary(file(tmp_path, *words(tokens)))
    assert found.tokens == [*tokens[:4], b"[EMPTY_4]", tokens[5]]


def test_longer_lists_than_the_vocabulary_are_cut(tmp_path: Path) -> None:
    more = [ggml("token_type", I32, [1] * 300), ggml("scores", I32, [3] * 300)]
    found = read_vocabulary(file(tmp_path, *words(WORDS, *more)))
    assert (found.types, found.scores) == ([1] * 200, [3.0] * 200)


REFUSED: dict[str, tuple[list[Key], str]] = {
    "no tokenizer": ([], "tokenizer.ggml.model is absent"),
    "a tokenizer by number": ([ggml("model", U32, 7)], "tokenizer.ggml.model is 7"),
    "no tokens": ([ggml("model", STRING, "gpt2")], "tokenizer.ggml.tokens is absent"),
    "an empty list": (words([]), "tokenizer.ggml.tokens is empty"),
    "one token instead of a list": (
        [ggml("model", STRING, "gpt2"), ggml("tokens", STRING, "x")],
        "tokenizer.ggml.tokens is",
    ),
    "numbers for tokens": (
        [ggml("model", STRING, "gpt2"), ggml("tokens", U32, [1, 2])],
        "tokenizer.ggml.tokens is an array of type 4",
    ),
    "a token twice": (words([*WORDS, "word7"]), "token 200 is word7: token 7 is the same"),
    "a control character in a twin": (words(["\x1b[2J", "\x1b[2J"]), "token 1 is \\x1b[2J"),
    "an empty token's name twice": (words(["[EMPTY_1]", ""]), "token 1 is [EMPTY_1]"),
    "a giant": (words(["x" * (v.LARGEST_TOKEN + 1)]), "a token of over 64 KiB"),
    "types for fewer": (words(WORDS, ggml("token_type", I32, [1] * 199)), "length of tokenizer.ggml.token_type is 199"),
    "types as floats": (words(WORDS, ggml("token_type", F32, [1.0] * 200)), "tokenizer.ggml.token_type is an array"),
    "one type": (words(WORDS, ggml("token_type", I32, 1)), "tokenizer.ggml.token_type is 1"),
    "scores for fewer": (words(WORDS, ggml("scores", F32, [0.0] * 3)), "length of tokenizer.ggml.scores is 3"),
    "scores of double width": (words(WORDS, ggml("scores", F64, [0.0] * 200)), "tokenizer.ggml.scores is an array"),
    "a score that is none": (words(WORDS, ggml("scores", F32, [math.nan] * 200)), "tokenizer.ggml.scores is not"),
    "endless scores": (words(WORDS, ggml("scores", F32, [math.inf] * 200)), "tokenizer.ggml.scores is not"),
    "merges by number": (words(WORDS, ggml("merges", I32, [1] * 2000)), "tokenizer.ggml.merges is an array"),
    "a role by name": (words(WORDS, ggml("bos_token_id", STRING, "word3")), "tokenizer.ggml.bos_token_id is word3"),
    "a pre-tokenizer by number": (words(WORDS, ggml("pre", I32, 2)), "tokenizer.ggml.pre is 2"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_vocabularies_that_cannot_be(name: str, tmp_path: Path) -> None:
    keys, told = REFUSED[name]
    path = file(tmp_path, *keys)
    with pytest.raises(BadModelFile) as caught:
        read_vocabulary(path)
    assert told in caught.value.message
    assert caught.value.message.startswith(f"{path}: ")
    assert caught.value.message.isprintable()
    assert caught.value.hint


def test_flags_are_flags(tmp_path: Path) -> None:
    found = read_vocabulary(file(tmp_path, *words(WORDS, ggml("add_bos_token", U32, 1))))
    with pytest.raises(BadModelFile, match="add_bos_token is 1"):
        found.flag("add_bos_token")


def test_more_tokens_than_there_may_be(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(v, "MAX_TOKENS", 199)
    with pytest.raises(BadModelFile, match=r"length of tokenizer\.ggml\.tokens is 200: at most 199"):
        read_vocabulary(file(tmp_path, *words(WORDS)))


def test_a_file_cut_anywhere_is_refused(tmp_path: Path) -> None:
    whole = file(tmp_path, *words(WORDS, ggml("scores", F32, [1.0] * 200), ggml("merges", STRING, WORDS))).read_bytes()
    path = tmp_path / "cut.gguf"
    for length in range(0, len(whole) - 1000, 97):
        path.write_bytes(whole[:length])
        with pytest.raises(BadModelFile):
            read_vocabulary(path)


def test_every_malformed_header_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    for _, data, _ in malformed.gguf_cases():
        path.write_bytes(data)
        with pytest.raises(BadModelFile):
            read_vocabulary(path)


def test_the_starter_model(smollm2: Path) -> None:
    found = read_vocabulary(smollm2)
    assert (found.model, found.pre, len(found.tokens)) == ("gpt2", "smollm", 49152)
    assert found.tokens[found.roles["bos"]] == b"<|im_start|>"
    assert len(found.merges) > 48_000
