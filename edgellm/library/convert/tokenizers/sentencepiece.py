"""SentencePiece: from its own file (tokenizer.model) or from what tokenizer.json says of it.

Two algorithms: BPE merges neighbours by score, Unigram finds the likeliest cut. The file is a Protocol Buffers message;
the few fields that matter are read here, bounds checked, without its library.
Source: sentencepiece_model.proto of https://github.com/google/sentencepiece
"""

from __future__ import annotations

import base64
import binascii
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from edgellm.errors import BadModelFile
from edgellm.formats.vocabulary import BYTE, CONTROL, NORMAL, SPACE, UNKNOWN, UNUSED, USER_DEFINED
from edgellm.library.convert.tokenizers.bpe import merges
from edgellm.library.convert.tokenizers.tokenizer_json import TokenizerJson
from edgellm.library.convert.tokenizers.vocabulary import Vocabulary, placed
from edgellm.small_files import read_small, why

_LARGEST: Final = 64 << 20  # bytes
_ADDED_SCORE: Final = -1000.0
_UNIGRAM, _BPE = 1, 2
_NOT_HERE: Final = "look for a GGUF of the model"


def read_model(path: Path, file: TokenizerJson | None) -> Vocabulary:
    """From tokenizer.model; added tokens and the space in front as tokenizer.json, where there is one, has them.

    Raises BadModelFile.
    """
    pieces, trainer, normaliser = _parse(path)
    kind = trainer.get(3, _UNIGRAM)
    if kind not in (_UNIGRAM, _BPE):
        raise BadModelFile(f"{path}: model_type is {kind}: neither Unigram nor BPE", hint=_NOT_HERE)
    by_id = {token: text for token, (text, _, _) in enumerate(pieces)}
    vocabulary = _vocabulary(by_id, file, str(path), "t5" if kind == _UNIGRAM else "llama")
    assert vocabulary.scores is not None
    added = {entry.id for entry in file.added} if file else set()
    for token, (_, score, piece_kind) in enumerate(pieces):
        if token not in added:
            vocabulary.scores[token], vocabulary.types[token] = score, piece_kind
    prefix = bool(normaliser.get(3, 1)) if file is None else _prefix(file)
    vocabulary.extra["add_space_prefix"] = prefix
    charsmap = normaliser.get(2)
    if kind == _UNIGRAM:
        vocabulary.extra["remove_extra_whitespaces"] = bool(normaliser.get(4, 1))
        if charsmap:
            vocabulary.extra["precompiled_charsmap"] = charsmap
    elif charsmap and normaliser.get(1) != b"identity":
        vocabulary.notes.append("the tokenizer of the original normalises text first (full-width letters and the like)")
    return vocabulary


def read_bpe(file: TokenizerJson) -> Vocabulary:
    """From a tokenizer.json whose BPE falls back to bytes: SentencePiece's, rewritten. Raises BadModelFile."""
    vocab = file.vocabulary()
    ranks = _ranks(file, vocab)
    vocabulary = _vocabulary({token: text for text, token in vocab.items()}, file, str(file.path), "llama")
    assert vocabulary.scores is not None
    added = {entry.id for entry in file.added}
    for text, token in vocab.items():
        if token not in added:
            # Characters are never the product of a merge; what they score is never asked.
            vocabulary.scores[token] = -float(ranks.get(text, len(ranks)))
            vocabulary.types[token] = BYTE if _is_byte(text) else NORMAL
    unknown = file.model.get("unk_token")
    if isinstance(unknown, str) and unknown in vocab:
        vocabulary.types[vocab[unknown]] = UNKNOWN
    vocabulary.extra["add_space_prefix"] = _prefix(file)
    return vocabulary


def read_unigram(file: TokenizerJson) -> Vocabulary:
    """From a tokenizer.json with a Unigram model. Raises BadModelFile."""
    if file.model.get("byte_fallback"):
        raise file.bad("a Unigram model that falls back to bytes is not supported by the engine", _NOT_HERE)
    pieces = file.model.get("vocab")
    try:
        pairs = [(str(text), float(score)) for text, score in pieces or ()]
    except (TypeError, ValueError) as error:
        raise file.bad("model.vocab is not a list of texts and scores") from error
    vocabulary = _vocabulary(dict(enumerate(text for text, _ in pairs)), file, str(file.path), "t5")
    assert vocabulary.scores is not None
    added = {entry.id for entry in file.added}
    for token, (_, score) in enumerate(pairs):
        if token not in added:
            vocabulary.scores[token], vocabulary.types[token] = score, NORMAL
    unknown = file.model.get("unk_id")
    if type(unknown) is int and 0 <= unknown < len(pairs):
        vocabulary.types[unknown] = UNKNOWN
        vocabulary.extra["unknown_token_id"] = unknown
    steps = {str(step.get("type")) for step in file.pre_tokenizers}
    merged = "WhitespaceSplit" in steps
    for step in file.normalizers:
        if step.get("type") == "Precompiled":
            vocabulary.extra["precompiled_charsmap"] = _charsmap(file, step)
        elif step.get("type") == "Replace" and _pattern(step) in (" {2,}", r"\s+", r" +"):
            merged = True
        else:
            raise file.bad(f"normalizer {step.get('type')} is not supported by the engine", _NOT_HERE)
    vocabulary.extra |= {"remove_extra_whitespaces": merged, "add_space_prefix": _prefix(file)}
    return vocabulary


def _vocabulary(by_id: dict[int, str], file: TokenizerJson | None, source: str, model: str) -> Vocabulary:
    """Pieces and added tokens, all scores nought and all pieces normal so far."""
    ids = {text: token for token, text in by_id.items()}
    types = dict.fromkeys(by_id, NORMAL)
    scores = dict.fromkeys(by_id, 0.0)
    for added in file.added if file else ():
        by_id[added.id], ids[added.text] = added.text, added.id
        types[added.id] = CONTROL if added.special else USER_DEFINED
        scores[added.id] = _ADDED_SCORE
    tokens = placed(by_id, source)
    count = range(len(tokens))
    return Vocabulary(
        model=model,
        pre="default",
        tokens=tokens,
        types=[types.get(token, UNUSED) for token in count],
        ids=ids,
        scores=[scores.get(token, _ADDED_SCORE) for token in count],
    )


def _ranks(file: TokenizerJson, vocab: dict[str, int]) -> dict[str, int]:
    """The order in which tokens come about. Merging by token, as SentencePiece does, must give what merging by pair
    gives: every pair that makes a token is a merge, and those of one token have ranks side by side.
    """
    ranks: dict[str, int] = {}
    last = ""
    known = set(merges(file))
    for left, right in merges(file):
        made = left + right
        if made != last and made in ranks:
            raise file.bad(f"the merges are not SentencePiece's: {made!r} is made at two ranks", _NOT_HERE)
        ranks.setdefault(made, len(ranks))
        last = made
    for made in ranks:
        for cut in range(1, len(made)):
            left, right = made[:cut], made[cut:]
            reachable = (left in ranks or len(left) == 1) and (right in ranks or len(right) == 1)
            if reachable and left in vocab and right in vocab and (left, right) not in known:
                raise file.bad(f"the merges are not SentencePiece's: {left!r} {right!r} is missing", _NOT_HERE)
    return ranks


def _prefix(file: TokenizerJson) -> bool:
    """Whether a space is put before the text. Raises BadModelFile for steps that are not SentencePiece's."""
    found = False
    for step in (*file.normalizers, *file.pre_tokenizers):
        match step.get("type"):
            case "Prepend":
                found = found or step.get("prepend") == SPACE
            case "Metaspace":
                scheme = step.get("prepend_scheme", "always" if step.get("add_prefix_space", True) else "never")
                found = found or scheme != "never"
            case "Replace" | "Precompiled" | "WhitespaceSplit":
                pass
            case "Split" if _pattern(step) == " ":  # spaces are gone by then
                pass
            case other:
                raise file.bad(f"{other} is not a step of SentencePiece's", _NOT_HERE)
    return found


def _pattern(step: dict[str, Any]) -> str:
    pattern = step.get("pattern")
    return str(pattern.get("Regex", pattern.get("String"))) if isinstance(pattern, dict) else str(pattern)


def _charsmap(file: TokenizerJson, step: dict[str, Any]) -> bytes:
    try:
        return base64.b64decode(step["precompiled_charsmap"], validate=True)
    except (KeyError, TypeError, ValueError, binascii.Error) as error:
        raise file.bad("normalizer.precompiled_charsmap is not base64") from error


def _is_byte(text: str) -> bool:
    return len(text) == 6 and text.startswith("<0x") and text.endswith(">")


# The file


def _parse(path: Path) -> tuple[list[tuple[str, float, int]], dict[int, Any], dict[int, Any]]:
    """Pieces (text, score, kind), the trainer's and the normaliser's fields."""
    try:
        pieces: list[tuple[str, float, int]] = []
        trainer: dict[int, Any] = {}
        normaliser: dict[int, Any] = {}
        for number, value in _fields(read_small(path, _LARGEST)):
            if number == 1:
                fields = dict(_fields(value))
                score = struct.unpack("<f", fields.get(2, bytes(4)))[0]
                pieces.append((fields[1].decode(), score, fields.get(3, NORMAL)))
            elif number == 2:
                trainer = dict(_fields(value))
            elif number == 3:
                normaliser = dict(_fields(value))
    except OSError as error:
        raise BadModelFile(f"{path}: {why(error)}", hint="check it and its permissions") from error
    except (ValueError, KeyError, IndexError, TypeError, AttributeError, struct.error) as error:
        raise BadModelFile(f"{path}: is not a SentencePiece model", hint="fetch the tokenizer again") from error
    if not pieces:
        raise BadModelFile(f"{path}: has no pieces", hint="fetch the tokenizer again")
    return pieces, trainer, normaliser


def _fields(data: bytes) -> Iterator[tuple[int, Any]]:
    """Field numbers and values: ints for varints, bytes for the rest. Raises ValueError, IndexError."""
    pos = 0
    while pos < len(data):
        key, pos = _varint(data, pos)
        number, wire = key >> 3, key & 7
        if wire == 0:
            value, pos = _varint(data, pos)
            yield number, value
            continue
        if wire == 2:
            size, pos = _varint(data, pos)
        elif wire in (1, 5):
            size = 8 if wire == 1 else 4
        else:
            raise ValueError(f"wire type {wire}")
        if pos + size > len(data):
            raise ValueError("a field ends past the end")
        yield number, data[pos : pos + size]
        pos += size


def _varint(data: bytes, pos: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[pos]
        value |= (byte & 127) << shift
        pos, shift = pos + 1, shift + 7
        if not byte & 128:
            return value, pos
        if shift > 63:
            raise ValueError("a number is too long")
