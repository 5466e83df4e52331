"""The parts of tokenizer.json that more than one kind of tokenizer needs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from edgellm.errors import BadModelFile


class AddedToken(NamedTuple):
    """A token that is found in text before everything else."""

    id: int
    text: str
    special: bool


class TokenizerJson:
    """A parsed tokenizer.json."""

    def __init__(self, path: Path, values: dict[str, Any]) -> None:
        self.path = path
        self.model: dict[str, Any] = self._object(values, "model")
        self.normalizers = list(_flat(values.get("normalizer"), "normalizers"))
        self.pre_tokenizers = list(_flat(values.get("pre_tokenizer"), "pretokenizers"))
        self.processors = list(_flat(values.get("post_processor"), "processors"))
        self.added = [self._added(entry) for entry in values.get("added_tokens") or ()]

    @property
    def kind(self) -> str:
        """BPE, Unigram, WordPiece … Old files leave it out where it is BPE."""
        said = self.model.get("type")
        return said if isinstance(said, str) else "BPE" if "merges" in self.model else "unknown"

    def vocabulary(self) -> dict[str, int]:
        """Texts and ids of the model itself. Raises BadModelFile."""
        vocab = self.model.get("vocab")
        if not isinstance(vocab, dict) or not vocab or not all(type(i) is int and i >= 0 for i in vocab.values()):
            raise self.bad("model.vocab is not a table of texts and ids")
        return vocab

    def frame(self) -> tuple[str | None, str | None]:
        """The special tokens that the post-processor puts before and after one text."""
        for processor in self.processors:
            if processor.get("type") == "TemplateProcessing":
                pieces = processor.get("single") or []
                return _special(pieces[:1]), _special(pieces[-1:])
            if processor.get("type") in ("BertProcessing", "RobertaProcessing"):
                return _first(processor.get("cls")), _first(processor.get("sep"))
        return None, None

    def bad(self, problem: str, hint: str = "fetch the tokenizer again") -> BadModelFile:
        return BadModelFile(f"{self.path}: {problem}", hint=hint)

    def _object(self, values: dict[str, Any], key: str) -> dict[str, Any]:
        value = values.get(key)
        if not isinstance(value, dict):
            raise self.bad(f"{key} is missing")
        return value

    def _added(self, entry: Any) -> AddedToken:
        try:
            token, text = entry["id"], entry["content"]
        except (TypeError, KeyError):
            token = text = None
        if type(token) is not int or token < 0 or not isinstance(text, str):
            raise self.bad("added_tokens has an entry without id or content")
        return AddedToken(token, text, bool(entry.get("special")))


def _flat(part: Any, key: str) -> Iterator[dict[str, Any]]:
    """The steps of a part that may be a sequence of sequences."""
    if isinstance(part, dict):
        if part.get("type") == "Sequence":
            for inner in part.get(key) or ():
                yield from _flat(inner, key)
        else:
            yield part


def _special(pieces: list[Any]) -> str | None:
    found = pieces[0].get("SpecialToken") if pieces and isinstance(pieces[0], dict) else None
    return found.get("id") if isinstance(found, dict) else None


def _first(pair: Any) -> str | None:
    return pair[0] if isinstance(pair, list) and pair and isinstance(pair[0], str) else None
