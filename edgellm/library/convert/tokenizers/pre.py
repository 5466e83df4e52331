"""How a byte-level BPE cuts text into words: recognised from tokenizer.json's own steps, never guessed from a name.

llama.cpp has the known ways built in, under the names of the models they came with. Two models that cut alike may
differ in `ignore_merges` (a word that is a token as a whole is taken as it is), which llama.cpp ties to the name.
"""

from __future__ import annotations

from typing import Any, Final

from edgellm.library.convert.tokenizers.tokenizer_json import TokenizerJson

_ENGLISH: Final = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_TAIL: Final = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_LLAMA3: Final = rf"{_ENGLISH}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}{{1,3}}|{_TAIL}"
_QWEN2: Final = rf"{_ENGLISH}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}|{_TAIL}"
_CASED: Final = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+",
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*",
)
_SLASH_TAIL: Final = r" ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_TEKKEN: Final = rf"{_CASED[0]}|{_CASED[1]}|\p{{N}}|{_SLASH_TAIL}"
_GPT4O: Final = rf"{_CASED[0]}{_ENGLISH}?|{_CASED[1]}{_ENGLISH}?|\p{{N}}{{1,3}}|{_SLASH_TAIL}"
_DEEPSEEK_V3: Final = (
    r"\p{N}{1,3}",
    "[一-龥\u3040-ゟ゠-ヿ]+",
    "[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^\\r\\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+"
    "| ?[\\p{P}\\p{S}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+",
)

# (steps, ignore_merges, normaliser) -> llama.cpp's name. GPT-2's own expression is inside the step "bytes and words".
_KNOWN: Final[dict[tuple[tuple[str, ...], bool, str], str]] = {
    (("bytes and words",), False, ""): "gpt-2",
    (("digits", "bytes and words"), False, ""): "smollm",
    ((_LLAMA3, "bytes"), True, ""): "llama-bpe",
    ((_LLAMA3, "bytes"), False, ""): "dbrx",
    ((_QWEN2, "bytes"), False, "NFC"): "qwen2",
    ((_QWEN2, "bytes"), False, ""): "deepseek-r1-qwen",
    ((_TEKKEN, "bytes"), True, ""): "tekken",
    ((_GPT4O, "bytes"), False, ""): "gpt-4o",
    ((*_DEEPSEEK_V3, "bytes"), False, ""): "deepseek-v3",
}


def recognise(file: TokenizerJson) -> str:
    """llama.cpp's name for how this tokenizer cuts text. Raises BadModelFile where it has none."""
    steps = tuple(_step(step) for step in file.pre_tokenizers)
    normaliser = "+".join(str(step.get("type")) for step in file.normalizers)
    ignore = bool(file.model.get("ignore_merges"))
    known = _KNOWN.get((steps, ignore, normaliser))
    if known is None:
        shown = ", ".join(step if len(step) <= 60 else step[:57] + "…" for step in steps) or "nothing"
        raise file.bad(
            f"how it cuts text is not known to the engine: normaliser {normaliser or 'none'}; {shown}; "
            f"ignore_merges {str(ignore).lower()}",
            "look for a GGUF of the model",
        )
    return known


def _step(step: dict[str, Any]) -> str:
    """One pre-tokenizer, told apart from all that work differently."""
    kind = step.get("type")
    if kind == "ByteLevel" and not step.get("add_prefix_space"):
        return "bytes and words" if step.get("use_regex", True) else "bytes"
    if kind == "Digits" and step.get("individual_digits"):
        return "digits"
    pattern = step.get("pattern")
    if kind == "Split" and isinstance(pattern, dict) and isinstance(pattern.get("Regex"), str):
        how = (step.get("behavior"), bool(step.get("invert")))
        # Removing what is not matched keeps every match: the expressions here match everything.
        if how in (("Isolated", False), ("Removed", True)):
            return _plain(pattern["Regex"])
    return repr({key: step[key] for key in sorted(step)})


def _plain(expression: str) -> str:
    """Line ends written out, as some files have them, and written as escapes are the same."""
    return expression.replace("\r", r"\r").replace("\n", r"\n")
