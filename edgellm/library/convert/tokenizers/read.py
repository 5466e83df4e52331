"""Tokenizers: which kind a folder has, and its vocabulary in GGUF's form."""

from __future__ import annotations

from edgellm.errors import BadModelFile
from edgellm.library.convert.config import read_json
from edgellm.library.convert.folder import Folder
from edgellm.library.convert.tokenizers import bpe, sentencepiece, special, wordpiece
from edgellm.library.convert.tokenizers.tokenizer_json import TokenizerJson
from edgellm.library.convert.tokenizers.vocabulary import Vocabulary

_HINT = "transformers writes one: AutoTokenizer.from_pretrained(FOLDER).save_pretrained(FOLDER)"


def read_vocabulary(folder: Folder, rows: int) -> Vocabulary:
    """The tokenizer of a folder whose embedding has `rows` rows. Raises BadModelFile."""
    path = folder.file("tokenizer.json")
    file = TokenizerJson(path, read_json(path)) if path else None
    vocabulary = _read(folder, file)
    vocabulary.fitted(rows)
    special.add_roles(vocabulary, folder, file)
    vocabulary.check(str(path or folder.path))
    return vocabulary


def _read(folder: Folder, file: TokenizerJson | None) -> Vocabulary:
    model = folder.file("tokenizer.model")
    if model is not None and (file is None or _is_sentencepiece(file)):
        return sentencepiece.read_model(model, file)
    if file is None:
        if folder.file("vocab.txt") is not None:
            return wordpiece.read_text(folder)
        raise BadModelFile(f"{folder.path}: there is neither tokenizer.json nor tokenizer.model", hint=_HINT)
    match file.kind:
        case "BPE":
            return sentencepiece.read_bpe(file) if _is_sentencepiece(file) else bpe.read(file)
        case "Unigram":
            return sentencepiece.read_unigram(file)
        case "WordPiece":
            return wordpiece.read(file)
    raise file.bad(f"model.type is {file.kind}: not a kind that the engine knows", "look for a GGUF of the model")


def _is_sentencepiece(file: TokenizerJson) -> bool:
    """Its BPE knows bytes as tokens (<0x0A>); GPT-2's writes every byte as a letter."""
    return file.kind == "Unigram" or (file.kind == "BPE" and bool(file.model.get("byte_fallback")))
