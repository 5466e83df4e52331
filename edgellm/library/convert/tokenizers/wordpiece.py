"""WordPiece (BERT) from tokenizer.json, or from vocab.txt where there is none.

GGUF marks the start of a word with U+2581 where BERT marks its continuation with "##".
"""

from __future__ import annotations

from typing import Any

from edgellm.errors import BadModelFile
from edgellm.formats.vocabulary import CONTROL, NORMAL, SPACE, UNKNOWN, UNUSED
from edgellm.library.convert.folder import Folder
from edgellm.library.convert.tokenizers.tokenizer_json import TokenizerJson
from edgellm.library.convert.tokenizers.vocabulary import Vocabulary, placed
from edgellm.small_files import read_small_text, why

_NOT_HERE = "look for a GGUF of the model"
_SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")


def read(file: TokenizerJson) -> Vocabulary:
    """Raises BadModelFile."""
    prefix = file.model.get("continuing_subword_prefix", "##")
    normaliser = file.normalizers[0] if len(file.normalizers) == 1 else {}
    cutter = file.pre_tokenizers[0].get("type") if len(file.pre_tokenizers) == 1 else None
    if prefix != "##" or normaliser.get("type") != "BertNormalizer" or cutter != "BertPreTokenizer":
        raise file.bad("this WordPiece does not normalise and cut text as BERT does", _NOT_HERE)
    if not normaliser.get("clean_text", True) or not normaliser.get("handle_chinese_chars", True):
        raise file.bad("normalizer: the engine cleans text and parts Chinese characters", _NOT_HERE)
    special = {added.text for added in file.added if added.special}
    lowercase = bool(normaliser.get("lowercase", True))
    accents = normaliser.get("strip_accents")
    return _vocabulary(
        {added.id: added.text for added in file.added} | {i: text for text, i in file.vocabulary().items()},
        special,
        str(file.model.get("unk_token", "[UNK]")),
        {"lowercase": lowercase, "strip_accents": lowercase if accents is None else bool(accents)},
        str(file.path),
    )


def read_text(folder: Folder) -> Vocabulary:
    """From vocab.txt and tokenizer_config.json. Raises BadModelFile."""
    path = folder.path / "vocab.txt"
    try:
        lines = read_small_text(path).split("\n")
    except OSError as error:
        raise BadModelFile(f"{path}: {why(error)}", hint="fetch the tokenizer again") from error
    lowercase = folder.tokenizer_config.flag("do_lower_case", True)
    accents = folder.tokenizer_config.get("strip_accents")
    options = {"lowercase": lowercase, "strip_accents": lowercase if accents is None else bool(accents)}
    words = {i: line.rstrip("\r") for i, line in enumerate(lines) if line.rstrip("\r")}
    return _vocabulary(words, set(_SPECIAL), "[UNK]", options, str(path))


def _vocabulary(
    by_id: dict[int, str], special: set[str], unknown: str, options: dict[str, bool], file: str
) -> Vocabulary:
    words = placed(by_id, file)
    types: list[int] = []
    tokens: list[str] = []
    for token, word in enumerate(words):
        kind = CONTROL if word in special else NORMAL if token in by_id else UNUSED
        types.append(UNKNOWN if word == unknown and kind != CONTROL else kind)
        marked = word[2:] if word.startswith("##") and len(word) > 2 else SPACE + word
        tokens.append(word if kind != NORMAL else marked)
    extra: dict[str, Any] = {f"normalizer.{key}": value for key, value in options.items()}
    return Vocabulary("bert", "default", tokens, types, {word: i for i, word in by_id.items()}, extra=extra)
