"""Tokens with a role, what surrounds a text, and chat templates."""

from __future__ import annotations

import re
from typing import Any, Final

from edgellm.errors import BadModelFile
from edgellm.formats.vocabulary import CONTROL, USER_DEFINED
from edgellm.library.convert.config import Config, read_json_if_there
from edgellm.library.convert.folder import Folder
from edgellm.library.convert.tokenizers.tokenizer_json import TokenizerJson
from edgellm.library.convert.tokenizers.vocabulary import Vocabulary
from edgellm.small_files import read_small_text, why

# role -> GGUF's key (the third is spelt as the format spells it)
_KEYS: Final = {
    "bos": "bos_token_id",
    "eos": "eos_token_id",
    "sep": "seperator_token_id",
    "unk": "unknown_token_id",
    "pad": "padding_token_id",
    "mask": "mask_token_id",
    "cls": "cls_token_id",
    "eot": "eot_token_id",
    "eom": "eom_token_id",
}
# Texts by which the engine knows an end of generation without being told.
_KNOWN_ENDS: Final = frozenset(
    {"<|eot_id|>", "<|im_end|>", "<|end|>", "<end_of_turn>", "<|endoftext|>", "<|eom_id|>", "<|end_of_text|>", "</s>"}
    | {"<eos>", "<EOT>", "<end_of_utterance>", "<｜end▁of▁sentence｜>"}
)
_LARGEST_TEMPLATE: Final = 1 << 20  # characters


def add_roles(vocabulary: Vocabulary, folder: Folder, file: TokenizerJson | None) -> None:
    """Give the vocabulary its special tokens and say which of them surround a text."""
    roles = _roles(vocabulary, folder)
    before, after = file.frame() if file is not None else (None, None)
    for role, text in (("bos", before), ("eos", after)):
        if role not in roles and text in vocabulary.ids:
            roles[role] = vocabulary.ids[str(text)]
    if vocabulary.model == "bert":
        roles |= {"bos": roles.get("cls", roles.get("bos", 0)), "eos": roles.get("sep", roles.get("eos", 0))}
    _add_ends(roles, vocabulary, folder)
    for role, token in roles.items():
        vocabulary.extra[_KEYS[role]] = token
    for role, said, text in (("bos", "add_bos_token", before), ("eos", "add_eos_token", after)):
        vocabulary.extra[said] = _adds(role, said, text, roles, vocabulary, folder, file)
    if "bos" not in roles and vocabulary.model == "gpt2":
        # Without the key the engine takes token 11 for it. Where there is none, an end stands between texts.
        vocabulary.extra["bos_token_id"] = roles.get("eos", 0)


def _roles(vocabulary: Vocabulary, folder: Folder) -> dict[str, int]:
    """By tokenizer_config.json, special_tokens_map.json, then the ids of config.json."""
    path = folder.path / "special_tokens_map.json"
    mapped = Config(path, read_json_if_there(path))
    roles: dict[str, int] = {}
    for role in ("bos", "eos", "sep", "unk", "pad", "mask", "cls"):
        for source in (folder.tokenizer_config, mapped):
            token = vocabulary.ids.get(_text(source.get(f"{role}_token")))
            if token is not None:
                roles.setdefault(role, token)
        for config in (folder.generation, folder.config):
            token = config.get(f"{role}_token_id")
            if type(token) is int and 0 <= token < len(vocabulary.tokens):
                roles.setdefault(role, token)
    ends = _ends(folder, vocabulary)
    if ends:
        roles.setdefault("eos", ends[0])
    return roles


def _text(value: Any) -> str:
    """A token is written as its text, or as an object that holds it."""
    text = value.get("content") if isinstance(value, dict) else value
    return text if isinstance(text, str) else ""


def _ends(folder: Folder, vocabulary: Vocabulary) -> list[int]:
    """Every token that ends an answer, by generation_config.json and config.json."""
    found: list[int] = []
    for config in (folder.generation, folder.config):
        value = config.get("eos_token_id")
        for token in value if isinstance(value, list) else [value]:
            if type(token) is int and 0 <= token < len(vocabulary.tokens) and token not in found:
                found.append(token)
    return found


def _add_ends(roles: dict[str, int], vocabulary: Vocabulary, folder: Folder) -> None:
    """GGUF names one end of text, one of a turn and one of a message; the engine knows more by their texts."""
    others = [token for token in _ends(folder, vocabulary) if token != roles.get("eos")]
    for token in others:
        if vocabulary.types[token] == USER_DEFINED:
            vocabulary.types[token] = CONTROL
    unknown = [token for token in others if vocabulary.tokens[token] not in _KNOWN_ENDS]
    for role, token in zip(("eot", "eom"), unknown, strict=False):
        roles[role] = token
    if len(unknown) > 2:
        texts = ", ".join(vocabulary.tokens[token] for token in unknown[2:])
        vocabulary.notes.append(f"these tokens end an answer of the original and not here: {texts}")


def _adds(
    role: str,
    said: str,
    framing: str | None,
    roles: dict[str, int],
    vocabulary: Vocabulary,
    folder: Folder,
    file: TokenizerJson | None,
) -> bool:
    """Whether that token belongs at this end of every text."""
    if role not in roles:
        return False
    if vocabulary.model == "bert":
        return True
    if framing is not None and vocabulary.ids.get(framing) == roles[role]:
        return True
    given = folder.tokenizer_config.get(said)
    if isinstance(given, bool):
        return given
    # Without tokenizer.json: what the slow tokenizers of SentencePiece models do.
    return role == "bos" and file is None and vocabulary.model == "llama"


def templates(folder: Folder) -> dict[str, Any]:
    """GGUF's keys of the chat template, and of further ones by name. Raises BadModelFile."""
    found = _named_templates(folder)
    keys: dict[str, Any] = {}
    for name, text in found.items():
        if len(text) > _LARGEST_TEMPLATE:
            raise BadModelFile(f"{folder.path}: the chat template has more than {_LARGEST_TEMPLATE:,} characters")
        keys["tokenizer.chat_template" + ("" if name == "default" else f".{name}")] = text
    others = sorted(name for name in found if name != "default")
    if others:
        keys["tokenizer.chat_templates"] = others
    return keys


def _named_templates(folder: Folder) -> dict[str, str]:
    """The first of: chat_template.jinja, chat_template.json, the key in tokenizer_config.json."""
    file = folder.file("chat_template.jinja")
    if file is not None:
        try:
            return {"default": read_small_text(file)}
        except OSError as error:
            raise BadModelFile(f"{file}: {why(error)}", hint="fetch it again") from error
    value = read_json_if_there(folder.path / "chat_template.json").get("chat_template")
    value = folder.tokenizer_config.get("chat_template") if value is None else value
    if isinstance(value, str):
        return {"default": value}
    found: dict[str, str] = {}
    for entry in value if isinstance(value, list) else ():
        name, text = (entry.get("name"), entry.get("template")) if isinstance(entry, dict) else (None, None)
        if isinstance(name, str) and isinstance(text, str) and re.fullmatch(r"\w{1,40}", name):
            found[name] = text
    return found
