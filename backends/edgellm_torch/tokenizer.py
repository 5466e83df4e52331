"""Text to token ids and back, from the vocabulary in the GGUF file: byte-level BPE by the library `tokenizers`,
SentencePiece's BPE, and WordPiece. Token for token what llama.cpp makes of the same file, with two exceptions: text
never becomes a control token by merging, even where a vocabulary would let it; and long runs without a space are not
cut.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from functools import cached_property
from typing import Any, Final

from edgellm.contracts.engine import ModelFile
from edgellm.errors import BadModelFile
from edgellm.formats.files import shown
from edgellm.formats.normal_forms import composed, valid
from edgellm.formats.token_floor import LETTERS, TokenFloor, token_floor
from edgellm.formats.vocabulary import (
    BYTE,
    CONTROL,
    NORMAL,
    SPACE,
    UNKNOWN,
    USER_DEFINED,
    Vocabulary,
    read_vocabulary,
)
from edgellm.formats.whole_tokens import WholeTokens
from edgellm_torch.sentencepiece import SentencePiece
from edgellm_torch.special_tokens import SpecialTokens, special_tokens
from edgellm_torch.splitting import KNOWN, NO_BOS, Splitting
from edgellm_torch.wordpiece import WordPiece

MODELS: Final = ("bert", "gpt2", "llama")
_HINT: Final = "the llama.cpp engine may know it: leave the choice of engine to edgellm"
_BYTE_NAME: Final = re.compile(rb"<0x([0-9A-Fa-f]{2})>")


def refusal(model: ModelFile) -> str | None:
    """Why this tokenizer cannot read `model`, from its header alone; None where it can."""
    said = model.metadata.get("tokenizer.ggml.model")
    return _refusal(said, model.metadata.get("tokenizer.ggml.pre", ""))


def _refusal(model: object, pre: object) -> str | None:
    if model not in MODELS:
        return f"its tokenizer is {shown(model)}; known are {', '.join(MODELS)}"
    if model == "gpt2" and pre not in KNOWN:
        return f"how its tokenizer cuts text is not known: {shown(pre)}"
    return None


def frame(model: ModelFile) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """What belongs before and after a whole text that is to be embedded: [CLS] and [SEP] with WordPiece, always; BOS
    and EOS with others, where the file wants them. Raises BadModelFile.
    """
    vocabulary = read_vocabulary(model.path)
    found = _specials(vocabulary, {token: number for number, token in enumerate(vocabulary.tokens)})
    if vocabulary.model == "bert":
        before, after = found.bos, found.separator
    else:
        before = found.bos if _adds_bos(vocabulary) else None
        after = found.eos if vocabulary.flag("add_eos_token") else None
    return (() if before is None else (before,)), (() if after is None else (after,))


class TorchTokenizer:
    """Tokenizer over one vocabulary.

    Text need not be valid Unicode: pairs of surrogates are joined, and a lone one, which stands for no character,
    becomes U+FFFD. Methods may be called from several threads. Raises BadModelFile for a vocabulary it does not know.
    """

    def __init__(self, model: ModelFile) -> None:
        vocabulary = read_vocabulary(model.path)
        refused = _refusal(vocabulary.model, vocabulary.pre)
        if refused:
            raise BadModelFile(f"{model.path}: {refused}", hint=_HINT)
        self._path = model.path
        self._tokens = vocabulary.tokens
        self._splitting = _splitting(vocabulary)
        ids = {token: number for number, token in enumerate(vocabulary.tokens)}
        found = _specials(vocabulary, ids)
        self._kinds = found.kinds
        self._bos, self._eos = found.bos, found.eos
        self._ends = found.ends
        self._template = vocabulary.chat_template
        self._adds_bos = _adds_bos(vocabulary)
        self._bytewise, self._spaced = vocabulary.model == "gpt2", vocabulary.model == "llama"
        self._composes = self._bytewise and self._splitting.composes
        self._encode: Callable[[str], list[int]]
        if self._bytewise:
            self._encode = _byte_pairs(vocabulary, self._kinds, self._splitting)
        elif vocabulary.model == "bert":
            self._encode = _wordpiece(vocabulary, self._kinds, found.unknown)
        else:
            self._encode = _sentencepiece(vocabulary, ids, self._kinds, found.unknown)
        prefix = vocabulary.flag("add_space_prefix")
        self._prefix = self._spaced and (prefix is None or prefix)
        self._always = self._whole(USER_DEFINED)
        self._pieces: dict[int, bytes] = {}

    @property
    def bos(self) -> int | None:
        return self._bos

    @property
    def eos(self) -> int | None:
        return self._eos

    @property
    def adds_bos(self) -> bool:
        return self._adds_bos

    @property
    def end_of_generation(self) -> frozenset[int]:
        return self._ends

    @property
    def vocabulary_size(self) -> int:
        return len(self._tokens)

    @property
    def chat_template(self) -> str | None:
        return self._template

    @cached_property
    def special_texts(self) -> tuple[str, ...]:
        return tuple(self.token_text(token) for token, kind in enumerate(self._kinds) if kind == CONTROL)

    def encode(self, text: str, *, special: bool) -> list[int]:
        """Ids of `text`, BOS never added."""
        text = self._normalised(text)
        ids: list[int] = []
        after_special = True
        for part in (self._with_control if special else self._always).cut(text):
            if isinstance(part, int):
                ids.append(part)
                after_special = True
                continue
            if self._spaced:
                part = (" " if self._prefix and after_special else "") + part
                part = part.replace(" ", SPACE)
            ids += self._encode(part)
            after_special = False
        return ids

    def fewest(self, text: str) -> int:
        return self._floor.of(self._normalised(text)) if self._floor else 0

    def token_text(self, token: int) -> str:
        return self._piece(token).decode("utf-8", "replace")

    def token_bytes(self, token: int) -> bytes:
        piece = self._pieces.get(token)
        if piece is None:
            piece = self._piece(token)
            if self._kinds[token] in (CONTROL, UNKNOWN):
                piece = b""
            self._pieces[token] = piece
        return piece

    # -- inside

    def _normalised(self, text: str) -> str:
        text = valid(text)
        return composed(text) if self._composes else text

    @cached_property
    def _floor(self) -> TokenFloor | None:
        return token_floor(self._path)

    @cached_property
    def _with_control(self) -> WholeTokens:
        return self._whole(USER_DEFINED, CONTROL, UNKNOWN)

    def _whole(self, *kinds: int) -> WholeTokens:
        return WholeTokens((number, self._tokens[number]) for number, kind in enumerate(self._kinds) if kind in kinds)

    def _piece(self, token: int) -> bytes:
        if not 0 <= token < len(self._tokens):
            raise ValueError(f"token {token} is not one of the {len(self._tokens)} in the vocabulary")
        raw, kind = self._tokens[token], self._kinds[token]
        if kind in (CONTROL, UNKNOWN, USER_DEFINED):
            return raw
        if kind == BYTE:
            named = _BYTE_NAME.fullmatch(raw)
            return bytes([int(named[1], 16)]) if named else b""
        if kind != NORMAL:
            return b""
        return _from_letters(raw) if self._bytewise else raw.replace(SPACE.encode(), b" ")


def _byte_pairs(vocabulary: Vocabulary, kinds: list[int], splitting: Splitting) -> Callable[[str], list[int]]:
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")  # threads for one text at a time would only lie about
    from tokenizers import Regex, Tokenizer, models, pre_tokenizers

    ids = _texts(vocabulary, kinds)
    merges: dict[tuple[str, str], None] = {}  # the first of two equal ones counts
    for merge in vocabulary.merges:
        cut = merge.find(b" ", 1)
        left, right = merge[:cut].decode("utf-8", "replace"), merge[cut + 1 :].decode("utf-8", "replace")
        if cut > 0 and left in ids and right in ids and left + right in ids:
            merges.setdefault((left, right))
    made: Any = Tokenizer(models.BPE(ids, list(merges), ignore_merges=splitting.whole_words))
    steps: list[Any] = [pre_tokenizers.Split(Regex(step), "isolated") for step in splitting.steps]
    steps.append(pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False))
    made.pre_tokenizer = pre_tokenizers.Sequence(steps)

    def encode(text: str) -> list[int]:
        # `encode` keeps the interpreter to itself: a long text would silence the worker's heartbeat. This does not.
        found: list[int] = made.encode_batch_fast([text], add_special_tokens=False)[0].ids
        return found

    return encode


def _sentencepiece(
    vocabulary: Vocabulary, ids: dict[bytes, int], kinds: list[int], unknown: int | None
) -> Callable[[str], list[int]]:
    byte_ids = [ids.get(b"<0x%02X>" % byte, ids.get(bytes([byte]))) for byte in range(256)]
    return SentencePiece(_texts(vocabulary, kinds), vocabulary.scores, byte_ids, unknown).encode


def _wordpiece(vocabulary: Vocabulary, kinds: list[int], unknown: int | None) -> Callable[[str], list[int]]:
    lowercase = vocabulary.flag("normalizer.lowercase")
    lowercase = lowercase is None or lowercase
    bare = vocabulary.flag("normalizer.strip_accents")
    return WordPiece(
        _texts(vocabulary, kinds), unknown, lowercase=lowercase, bare=lowercase if bare is None else bare
    ).encode


def _splitting(vocabulary: Vocabulary) -> Splitting:
    return KNOWN.get(vocabulary.pre if vocabulary.model == "gpt2" else "", KNOWN[""])


def _specials(vocabulary: Vocabulary, ids: dict[bytes, int]) -> SpecialTokens:
    return special_tokens(vocabulary, ids, bos_by_default=vocabulary.model != "gpt2" or vocabulary.pre not in NO_BOS)


def _adds_bos(vocabulary: Vocabulary) -> bool:
    said = vocabulary.flag("add_bos_token")
    if said is not None:
        return said
    return vocabulary.model != "gpt2" or _splitting(vocabulary).adds_bos


def _texts(vocabulary: Vocabulary, kinds: list[int]) -> dict[str, int]:
    """The tokens that text may become."""
    found: dict[str, int] = {}
    for number, (token, kind) in enumerate(zip(vocabulary.tokens, kinds, strict=True)):
        if kind not in (CONTROL, UNKNOWN, BYTE):
            try:
                found[token.decode()] = number
            except UnicodeDecodeError:
                continue  # text is made of whole characters
    return found


def _from_letters(raw: bytes) -> bytes:
    """The bytes a token stands for. What is no such letter is shown as llama.cpp shows it."""
    text = raw.decode("utf-8", "replace")
    if all(letter in LETTERS for letter in text):
        return bytes([LETTERS[letter] for letter in text])
    parts = []
    for letter in text:
        known = LETTERS.get(letter)
        parts.append(b"[UNK_BYTE_0x%s%s]" % (letter.encode().hex().encode(), raw) if known is None else bytes([known]))
    return b"".join(parts)
