"""What every kind of tokenizer becomes: GGUF's lists of tokens, their kinds, and the keys that go with them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from edgellm.errors import BadModelFile
from edgellm.formats.vocabulary import UNUSED


@dataclass
class Vocabulary:
    """A tokenizer as GGUF describes it. Token ids are positions in the lists.

    model   which algorithm: "gpt2" byte-level BPE, "llama" SentencePiece BPE, "t5" SentencePiece Unigram, "bert"
    pre     how text is cut before it, by llama.cpp's name
    ids     token ids by the text that tokenizer files use
    extra   further keys, without "tokenizer.ggml."
    """

    model: str
    pre: str
    tokens: list[str]
    types: list[int]
    ids: dict[str, int]
    scores: list[float] | None = None
    merges: list[str] | None = None
    extra: dict[str, Any] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def fitted(self, rows: int) -> None:
        """Make it exactly as long as the embedding: unused tokens are added, those without a row are dropped."""
        del self.tokens[rows:], self.types[rows:]
        if self.scores is not None:
            del self.scores[rows:]
        self.ids = {text: token for text, token in self.ids.items() if token < rows}
        taken = set(self.tokens)
        while len(self.tokens) < rows:
            name = f"[PAD{len(self.tokens)}]"
            self.tokens.append(name if name not in taken else f"[UNUSED_ROW_{len(self.tokens)}]")
            self.types.append(UNUSED)
            if self.scores is not None:
                self.scores.append(-10_000.0)

    def check(self, file: str) -> None:
        """Raise BadModelFile where the engine would refuse the list, or abort."""
        seen: dict[str, int] = {}
        for token, text in enumerate(self.tokens):
            if text in seen or not text:
                problem = f"has the text of token {seen[text]}" if text else "has no text"
                raise BadModelFile(f"{file}: token {token} {problem}: {text!r}", hint="fetch the tokenizer again")
            seen[text] = token

    def metadata(self) -> dict[str, Any]:
        """The keys of the GGUF file."""
        found: dict[str, Any] = {
            "model": self.model,
            "pre": self.pre,
            "tokens": self.tokens,
            "token_type": self.types,
        }
        if self.scores is not None:
            found["scores"] = self.scores
        if self.merges is not None:
            found["merges"] = self.merges
        return {f"tokenizer.ggml.{key}": value for key, value in (found | self.extra).items()}


def placed(by_id: dict[int, str], file: str) -> list[str]:
    """A list from ids; gaps get names of their own. Raises BadModelFile for ids beyond reason."""
    size = max(by_id, default=-1) + 1
    if not by_id or size > 4 * len(by_id) + 100_000:
        raise BadModelFile(f"{file}: {len(by_id)} tokens with ids up to {size - 1}", hint="fetch the tokenizer again")
    return [by_id.get(token, f"[PAD{token}]") for token in range(size)]
