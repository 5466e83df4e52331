"""The starter models' own vocabularies, as their authors' tokenizer files, converted: nothing is lost on the way."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import pytest

from convert import llama
from convert.corpus import TEXTS
from convert.test_tokenizers import converted
from edgellm.library.convert.tokenizers import pre

BPE_WITHOUT_PREFIX = b"\x12\x02\x18\x02\x1a\x02\x18\x00"  # trainer and normaliser of a SentencePiece file
SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}


def fields(path: Path) -> dict[str, Any]:
    """The tokenizer's keys of a GGUF file."""
    with path.open("rb") as file:

        def number(form: str) -> Any:
            return struct.unpack("<" + form, file.read(struct.calcsize("<" + form)))[0]

        def value(kind: int) -> Any:
            if kind == 8:
                return file.read(number("Q")).decode()
            if kind != 9:
                return number(SCALARS[kind])
            inner, count = number("I"), number("Q")
            if inner == 8:
                return [value(8) for _ in range(count)]
            form = f"<{count}{SCALARS[inner]}"
            return list(struct.unpack(form, file.read(struct.calcsize(form))))

        file.seek(16)
        found = {value(8): value(number("I")) for _ in range(number("Q"))}
    return {name.removeprefix("tokenizer.ggml."): said for name, said in found.items()}


@pytest.mark.slow
def test_smollm2(smollm2: Path, tmp_path: Path) -> None:
    """Its tokenizer.json, put together from what its GGUF keeps, gives its GGUF's vocabulary and ids again."""
    from tokenizers import Tokenizer

    said = fields(smollm2)
    special = [index for index, kind in enumerate(said["token_type"]) if kind == 3]
    steps = [
        {"type": "Digits", "individual_digits": True},
        {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True},
    ]
    values = {
        "version": "1.0",
        "added_tokens": [
            {
                "id": index,
                "content": said["tokens"][index],
                "special": True,
                "single_word": False,
                "lstrip": False,
                "rstrip": False,
                "normalized": False,
            }
            for index in special
        ],
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": steps},
        "model": {
            "type": "BPE",
            "vocab": {text: index for index, text in enumerate(said["tokens"])},
            "merges": [merge.split(" ") for merge in said["merges"]],
        },
    }
    (tmp_path / "tokenizer.json").write_text(json.dumps(values))
    (tmp_path / "tokenizer_config.json").write_text('{"bos_token": "<|im_start|>", "eos_token": "<|im_end|>"}')
    ours, vocabulary = converted(tmp_path, len(said["tokens"]))
    assert (vocabulary.model, vocabulary.pre) == (said["model"], said["pre"]) == ("gpt2", "smollm")
    assert vocabulary.tokens == said["tokens"]
    assert vocabulary.types == said["token_type"]
    assert vocabulary.merges == said["merges"]
    original: Any = Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    theirs = llama.tokenizer(smollm2)
    assert ours.end_of_generation == theirs.end_of_generation
    for text in TEXTS:
        ids = original.encode(text, add_special_tokens=False).ids
        assert ours.encode(text, special=False) == ids == theirs.encode(text, special=False)


@pytest.mark.slow
def test_gemma3(gemma3: Path, tmp_path: Path) -> None:
    """262,144 pieces, written as tokenizer.model, come back as they were."""
    said = fields(gemma3)
    pieces = zip(said["tokens"], said["scores"], said["token_type"], strict=True)
    (tmp_path / "tokenizer.model").write_bytes(
        b"".join(map(_piece, pieces)) + b"\x12\x02\x18\x02" + b"\x1a\x02\x18\x00"
    )
    (tmp_path / "tokenizer_config.json").write_text(
        '{"bos_token": "<bos>", "eos_token": "<eos>", "unk_token": "<unk>", "tokenizer_class": "GemmaTokenizer"}'
    )
    ours, vocabulary = converted(tmp_path, len(said["tokens"]))
    assert vocabulary.tokens == said["tokens"]
    assert vocabulary.types == said["token_type"]
    assert vocabulary.scores == said["scores"]
    assert vocabulary.extra["add_space_prefix"] is False
    theirs = llama.tokenizer(gemma3)
    assert (ours.adds_bos, ours.bos, ours.eos) == (theirs.adds_bos, theirs.bos, theirs.eos)
    for text in TEXTS:
        assert ours.encode(text, special=False) == theirs.encode(text, special=False)


def _piece(piece: tuple[str, float, int]) -> bytes:
    text, score, kind = piece
    body = _bytes(1, text.encode()) + b"\x15" + struct.pack("<f", score) + bytes([3 << 3, kind])
    return _bytes(1, body)


def _bytes(number: int, value: bytes) -> bytes:
    size, length = len(value), b""
    while size > 127:
        length += bytes([size & 127 | 128])
        size >>= 7
    return bytes([number << 3 | 2]) + length + bytes([size]) + value


def test_every_known_way_to_cut_text_has_one_name() -> None:
    assert len(set(pre._KNOWN.values())) == len(pre._KNOWN)
