"""Byte-level BPE (GPT-2's kind) from tokenizer.json: Llama 3, Qwen, SmolLM, Phi 4."""

from __future__ import annotations

from edgellm.formats.vocabulary import CONTROL, NORMAL, UNUSED, USER_DEFINED
from edgellm.library.convert.tokenizers import pre
from edgellm.library.convert.tokenizers.tokenizer_json import TokenizerJson
from edgellm.library.convert.tokenizers.vocabulary import Vocabulary, placed


def read(file: TokenizerJson) -> Vocabulary:
    """Raises BadModelFile."""
    for key in ("continuing_subword_prefix", "end_of_word_suffix"):
        if file.model.get(key):
            raise file.bad(f"model.{key} is {file.model[key]!r}: not supported", "look for a GGUF of the model")
    ids = dict(file.vocabulary())
    by_id = {token: text for text, token in ids.items()}
    types = dict.fromkeys(by_id, NORMAL)
    for added in file.added:
        by_id[added.id] = added.text
        types[added.id] = CONTROL if added.special else USER_DEFINED
        ids[added.text] = added.id
    tokens = placed(by_id, str(file.path))
    return Vocabulary(
        model="gpt2",
        pre=pre.recognise(file),
        tokens=tokens,
        types=[types.get(token, UNUSED) for token in range(len(tokens))],
        ids=ids,
        merges=[f"{left} {right}" for left, right in merges(file)],
    )


def merges(file: TokenizerJson) -> list[tuple[str, str]]:
    """Pairs in order of rank. Raises BadModelFile."""
    found = []
    for entry in file.model.get("merges") or ():
        pair = entry.split(" ") if isinstance(entry, str) else entry
        if not isinstance(pair, list) or len(pair) != 2 or not all(isinstance(part, str) for part in pair):
            raise file.bad(f"model.merges has the entry {str(entry)[:60]!r}")
        found.append((pair[0], pair[1]))
    if not found:
        raise file.bad("model.merges is empty")
    return found
