"""Text to token ids and back, by llama.cpp's own tokenizer from the model's own vocabulary."""

from __future__ import annotations

import ctypes
import re
import unicodedata
from collections.abc import Callable, Iterable
from functools import cached_property
from itertools import repeat
from pathlib import Path

from edgellm.errors import InvalidRequest
from edgellm.formats.normal_forms import composed, decomposed, valid
from edgellm.formats.token_floor import TokenFloor, token_floor
from edgellm.formats.whole_tokens import WholeTokens
from edgellm_llamacpp.native import Library, Vocabulary

LONGEST_RUN = 700  # characters
_LARGEST = 2**31 - 1  # bytes, and tokens, of one call
_LONG_RUNS = re.compile(rf"\S{{{LONGEST_RUN + 1},}}|\s{{{LONGEST_RUN + 1},}}")
_BEFORE_MARK = re.compile(r"\w(?=[^\w\s])")


class LlamaCppTokenizer:
    """Tokenizer over one vocabulary.

    Text need not be valid Unicode: pairs of surrogates are joined, and a lone one, which stands for no character,
    becomes U+FFFD. Methods may be called from several threads.
    """

    def __init__(self, lib: Library, vocabulary: Vocabulary, path: Path) -> None:
        """`path`: the file that the vocabulary is of."""
        self._api = lib.api
        self._path = path
        self._vocabulary = vocabulary
        self._size = int(self._vocabulary.ask(self._api.llama_vocab_n_tokens))
        # Some byte-pair vocabularies are cut by std::regex, which recurses once per character.
        self._cuts = self._vocabulary.ask(self._api.llama_vocab_type) == self._api.LLAMA_VOCAB_TYPE_BPE
        self._normalise = self._normaliser()
        self._pieces: dict[int, bytes] = {}

    @property
    def bos(self) -> int | None:
        return self._special("bos")

    @property
    def eos(self) -> int | None:
        return self._special("eos")

    @property
    def adds_bos(self) -> bool:
        return bool(self._vocabulary.ask(self._api.llama_vocab_get_add_bos))

    @property
    def vocabulary_size(self) -> int:
        return self._size

    @cached_property
    def chat_template(self) -> str | None:
        source = self._vocabulary.ask_model(self._api.llama_model_chat_template, None)
        return source.decode("utf-8", "replace") if source else None

    @cached_property
    def end_of_generation(self) -> frozenset[int]:
        """Every id that llama.cpp takes for an end. It marks them as control tokens, but for those a header names."""
        named = self._header("eom_token_id")
        by_name = [self._special(name) for name in ("eos", "eot", "fim_pad", "fim_rep", "fim_sep")]
        by_name.append(int(named) if named.isdecimal() else None)
        candidates = {
            *self._control,
            *(token for token in by_name if token is not None and token < self._size),
        }
        return frozenset(token for token in candidates if self._vocabulary.ask(self._api.llama_vocab_is_eog, token))

    @cached_property
    def special_texts(self) -> tuple[str, ...]:
        return tuple(text for token in self._control if (text := self.token_text(token)))

    def encode(self, text: str, *, special: bool) -> list[int]:
        """Ids of `text`, BOS never added. Raises InvalidRequest for more than 2 GiB.

        A run of over LONGEST_RUN characters without a break is cut where a token would most likely end anyway.
        """
        if self._normalise:
            text = self._normalise(text)
        ids: list[int] = []
        for part in (self._with_control if special else self._always).cut(valid(text)):
            if isinstance(part, int):
                ids.append(part)
                continue
            start = 0
            for cut in self._cut_points(part) if self._cuts and len(part) > LONGEST_RUN else ():
                ids += self._encode(part[start:cut])
                start = cut
            ids += self._encode(part[start:])
        return ids

    def fewest(self, text: str) -> int:
        return self._floor.of(valid(self._normalise(text) if self._normalise else text)) if self._floor else 0

    def token_text(self, token: int) -> str:
        return self._piece(token, True).decode("utf-8", "replace")

    def token_bytes(self, token: int) -> bytes:
        piece = self._pieces.get(token)
        if piece is None:
            piece = self._pieces[token] = self._piece(token, False)
        return piece

    # -- inside

    def _encode(self, text: str) -> list[int]:
        """Of text in which no token stands as a whole."""
        data = text.encode()
        if len(data) > _LARGEST:
            raise InvalidRequest(f"the text has {len(data)} bytes; at most {_LARGEST} can be tokenised at once")
        room = len(data) + 8
        while True:
            ids = (ctypes.c_int32 * room)()
            count = self._vocabulary.ask(self._api.llama_tokenize, data, len(data), ids, room, False, False)
            if count >= 0:
                return ids[:count]
            if count == -_LARGEST - 1:
                raise InvalidRequest("the text has more tokens than can be counted")
            room = -count

    def _cut_points(self, text: str) -> list[int]:
        """Where to cut overlong runs: at most LONGEST_RUN apart, before punctuation where there is any.

        Measured: std::regex overflows a stack of 512 KiB, what some systems give a thread, at over 1,500 characters.
        """
        cuts: list[int] = []
        for run in _LONG_RUNS.finditer(text):
            start, end = run.span()
            while end - start > LONGEST_RUN:
                limit = start + LONGEST_RUN
                mark = _BEFORE_MARK.search(text, start + LONGEST_RUN // 2, limit)
                start = mark.end() if mark else limit
                cuts.append(start)
        return cuts

    def _normaliser(self) -> Callable[[str], str] | None:
        """What a model's own tokenizer does to text first and llama.cpp's does not, or not for all of Unicode."""
        if self._cuts and self._header("pre") == "qwen2":
            return composed
        if self._vocabulary.ask(self._api.llama_vocab_type) != self._api.LLAMA_VOCAB_TYPE_WPM:
            return None
        lowercase = self._header("normalizer.lowercase") != "false"  # true where the header is silent
        bare = (self._header("normalizer.strip_accents") or str(lowercase).lower()) == "true"
        return {(True, True): _plain_lowercase, (True, False): _lowercase, (False, True): _plain}.get((lowercase, bare))

    def _header(self, key: str) -> str:
        """A short value of the file's header, "" where it has none."""
        value = ctypes.create_string_buffer(64)
        name = f"tokenizer.ggml.{key}".encode()
        found = self._vocabulary.ask_model(self._api.llama_model_meta_val_str, name, value, len(value)) > 0
        return value.value.decode("utf-8", "replace") if found else ""

    @cached_property
    def _floor(self) -> TokenFloor | None:
        strips = bool(self._having(self._api.LLAMA_TOKEN_ATTR_LSTRIP | self._api.LLAMA_TOKEN_ATTR_RSTRIP))
        return token_floor(self._path, strips=strips)

    @cached_property
    def _control(self) -> tuple[int, ...]:
        return self._having(self._api.LLAMA_TOKEN_ATTR_CONTROL)

    @cached_property
    def _attributes(self) -> list[int]:
        get = self._api.llama_vocab_get_attr
        return list(self._vocabulary.ask(lambda vocabulary: [*map(get, repeat(vocabulary), range(self._size))]))

    def _having(self, attributes: int) -> tuple[int, ...]:
        return tuple(token for token, has in enumerate(self._attributes) if has & attributes)

    @cached_property
    def _always(self) -> WholeTokens:
        control = {*self._control, *self._having(self._api.LLAMA_TOKEN_ATTR_UNKNOWN)}
        return self._whole(set(self._having(self._api.LLAMA_TOKEN_ATTR_USER_DEFINED)) - control)

    @cached_property
    def _with_control(self) -> WholeTokens:
        api = self._api
        kinds = api.LLAMA_TOKEN_ATTR_USER_DEFINED | api.LLAMA_TOKEN_ATTR_CONTROL | api.LLAMA_TOKEN_ATTR_UNKNOWN
        return self._whole(self._having(kinds))

    def _whole(self, tokens: Iterable[int]) -> WholeTokens:
        """llama.cpp finds them, too, but looks for each of them, of maybe thousands, in all of the text."""
        texts = ((token, self._vocabulary.ask(self._api.llama_vocab_get_text, token)) for token in sorted(tokens))
        before, after = self._api.LLAMA_TOKEN_ATTR_LSTRIP, self._api.LLAMA_TOKEN_ATTR_RSTRIP
        return WholeTokens(texts, frozenset(self._having(before)), frozenset(self._having(after)))

    def _special(self, name: str) -> int | None:
        token = int(self._vocabulary.ask(getattr(self._api, f"llama_vocab_{name}")))
        return token if 0 <= token < self._size else None

    def _piece(self, token: int, special: bool) -> bytes:
        if not 0 <= token < self._size:
            raise ValueError(f"token {token} is not one of the {self._size} in the vocabulary")
        room = 256
        while True:
            buffer = ctypes.create_string_buffer(room)
            count = self._vocabulary.ask(self._api.llama_token_to_piece, token, buffer, room, 0, special)
            if count >= 0:
                return buffer.raw[:count]
            room = -count


def _plain(text: str) -> str:
    """Letters without their accents; Korean syllables become letters on the way, as BERT has it."""
    return "".join(c for c in decomposed(text) if unicodedata.category(c) != "Mn")


def _lowercase(text: str) -> str:
    return "".join(c.lower() for c in text)  # letter by letter: a sigma at a word's end stays a plain one


def _plain_lowercase(text: str) -> str:
    return _lowercase(_plain(text))
