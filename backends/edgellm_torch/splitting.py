"""How byte-level BPE cuts text into words, by the names that GGUF files carry (`tokenizer.ggml.pre`).

Each way is a series of expressions; each cuts the pieces of the one before into matches and what lies between. They
say what llama.cpp does, for which files are written: so a prompt has the same tokens on every engine, also where the
original tokenizer differs (marks that follow letters, in gpt-4o and tekken).
Source: llama-vocab.cpp and unicode.cpp of llama.cpp.
"""

from __future__ import annotations

from typing import Final

import msgspec

# Written out in both cases: an expression that ignores case would also take the long s for an s.
_ENGLISH: Final = r"(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])"
_TAIL: Final = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_SLASH_TAIL: Final = r" ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_WORD: Final = r"[^\r\n\p{L}\p{N}]?\p{L}+"
_MARKED: Final = r"[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+"
_GPT2: Final = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)"
_LLAMA3: Final = rf"{_ENGLISH}|{_WORD}|\p{{N}}{{1,3}}|{_TAIL}"
_QWEN2: Final = rf"{_ENGLISH}|{_WORD}|\p{{N}}|{_TAIL}"
_QWEN35: Final = rf"{_ENGLISH}|{_MARKED}|\p{{N}}| ?[^\s\p{{L}}\p{{M}}\p{{N}}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
# Capitals, then small letters; beyond ASCII a letter counts as either.
_UPPER: Final = r"(?:(?=\p{L})[^a-z])"
_LOWER: Final = r"(?:(?=\p{L})[^A-Z])"
_CASED: Final = (
    rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+",
    rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*",
)
_TEKKEN: Final = rf"{_CASED[0]}|{_CASED[1]}|\p{{N}}|{_SLASH_TAIL}"
_GPT4O: Final = rf"{_CASED[0]}{_ENGLISH}?|{_CASED[1]}{_ENGLISH}?|\p{{N}}{{1,3}}|{_SLASH_TAIL}"
_DEEPSEEK_V3: Final = (
    r"\p{N}{1,3}",
    "[一-龥\u3040-ゟ゠-ヿ]+",
    "[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^\\r\\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+"
    "| ?[\\p{P}\\p{S}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+",
)
# Latin, Greek, Cyrillic, Armenian, Georgian, Cherokee … as DeepSeek's first tokenizer lists them.
_LETTERS: Final = (
    "A-Za-zµÀ-ÖØ-öø-ƺƼ-ƿǄ-ʓʕ-ʯͰ-ͳͶͷͻ-ͽͿΆΈ-ΊΌΎ-ΡΣ-ϵϷ-ҁҊ-ԯԱ-ՖႠ-ჅᎠ-Ᏽᏸ-ᏽᲐ-ᲺᲽ-Ჿᴀ-ᴫᵫ-ᵷᵹ-ᶚḀ-ἕἘ-Ἕἠ-ὅὈ-Ὅὐ-ὗὙὛὝὟ-\u1f7dᾀ"
    "-ᾴᾶ-ᾼ\u1fbeῂ-ῄῆ-ῌῐ-\u1fd3ῖ-\u1fdbῠ-Ῥῲ-ῴῶ-ῼℂℇℊ-ℓℕℙ-ℝℤ\u2126ℨ\u212a-ℭℯ-ℴℹℼ-ℿⅅ-ⅉⅎↃↄⰀ-ⱻⱾ-ⳤⳫ-ⳮ\u2cf2ⳳꙀ-ꙭꚀ-ꚛꜢ-ꝯ"
    "ꝱ-ꞇꞋ-ꞎꭰ-ꮿﬀ-ﬆﬓ-ﬗＡ-Ｚａ-ｚ𐐀-𐑏𐒰-𐓓𐓘-𐓻𐲀-𐲲𐳀-𐳲𑢠-𑣟𞤀-𞥃"
)
_CHINESE_KOREAN: Final = "(?:(?!\\s)[\u0800-龥가-\ud7ff])+"  # spaces of the range are spaces
_DEEPSEEK_LLM: Final = (
    r"[\r\n]",
    rf"\s?[{_LETTERS}]+",
    "\\s?[!-/:-~！-／：-～‘-‟\u3001-。]+",  # the ideographic space is a space by then
    r"\s+\z",
    _CHINESE_KOREAN,
    r"\p{N}+",
)
_DEEPSEEK_CODER: Final = (r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", _CHINESE_KOREAN, r"\p{N}")
_FALCON: Final = (r"[\p{P}\$\+<=>\^~\|`]+", _GPT2, r"[0-9][0-9][0-9]")
_BLOOM: Final = r" ?[^(\s|.,!?…。，、।۔،)]+"
_SEED_CODER: Final = (
    rf"{_ENGLISH}|{_WORD}|\p{{N}}| ?[^\s\p{{L}}\p{{N}}\r\n]+|\s*[\r\n]+|\s+(?!\S)|\s+"  # line ends by themselves
)
_YOUTU: Final = (
    "[가-힣ㄱ-ㆎ]+|[！…“”‘’—：；，\u3001-\u303f\ufe30-\ufe4f]+|[ㄅ-ㄯ]+|[一-龥\u3040-ゟ゠-ヿ]+",
    rf"{_MARKED}{_ENGLISH}?|\p{{N}}|{_SLASH_TAIL}",
)
_HAN: Final = "[㐀-䶿一-\u9fff\uf900-\ufaff\U00020000-\U0002a6df\U0002a700-\U0002ebef\U0002f800-\U0002fa1f]"
_KIMI_K2: Final = (
    rf"{_HAN}+|[^\r\n\p{{L}}\p{{N}}]?(?:(?!{_HAN})\p{{L}})+{_ENGLISH}?|\p{{N}}{{1,3}}|{_TAIL}"  # Chinese by itself
)
# Digits in threes from the right, and anything else as it comes: a piece ends where threes of digits begin.
_THREES: Final = r"(?m:.)(?:(?!(?:[0-9]{3})+(?![0-9]))(?m:.))*"
_DEFAULT: Final = (r"[\p{P}\$\+<=>\^~\|]+", _GPT2, r"\p{N}+", r"[0-9][0-9][0-9]")


class Splitting(msgspec.Struct, frozen=True, kw_only=True):
    """One way. `whole_words`: a word that is a token is that token, whatever the merges make of it.

    composes    text is brought into Unicode's composed form (NFC) first
    """

    steps: tuple[str, ...]
    whole_words: bool = False
    adds_bos: bool = False
    composes: bool = False


_DIGITS: Final = Splitting(steps=(r"\p{N}", _GPT2))
_PLAIN: Final = Splitting(steps=(_GPT2,))
_OF_LLAMA3: Final = Splitting(steps=(_LLAMA3,), whole_words=True, adds_bos=True)
_OF_QWEN2: Final = Splitting(steps=(_QWEN2,))
_OF_V3: Final = Splitting(steps=_DEEPSEEK_V3)

KNOWN: Final[dict[str, Splitting]] = {
    "": Splitting(steps=_DEFAULT),
    "default": Splitting(steps=_DEFAULT),
    **dict.fromkeys(("gpt-2", "phi-2", "mpt", "olmo", "jais", "trillion", "granite-docling", "exaone4"), _PLAIN),
    **dict.fromkeys(("gigachat", "a.x-4.0", "mellum"), _PLAIN),
    **dict.fromkeys(("jina-es", "jina-de", "jina-v1-en", "jina-v2-es", "jina-v2-de", "jina-v2-code"), _PLAIN),
    **dict.fromkeys(("roberta-bpe", "modern-bert"), _PLAIN),
    **dict.fromkeys(("smollm", "starcoder", "refact", "command-r", "codeshell", "exaone", "minerva-7b"), _DIGITS),
    "mellum2": _DIGITS,
    **dict.fromkeys(("llama-bpe", "llama3", "llama-v3", "falcon3", "falcon-h1", "pixtral", "midm-2.0"), _OF_LLAMA3),
    **dict.fromkeys(("lfm2", "jina-v5-nano"), _OF_LLAMA3),
    **dict.fromkeys(("dbrx", "smaug-bpe", "chatglm-bpe"), Splitting(steps=(_LLAMA3,))),
    **dict.fromkeys(("glm4", "glm5", "minicpm5"), Splitting(steps=(_LLAMA3,), whole_words=True)),
    "qwen2": Splitting(steps=(_QWEN2,), composes=True),
    **dict.fromkeys(("deepseek-r1-qwen", "stablelm2", "hunyuan", "solar-open", "grok-2", "megrez"), _OF_QWEN2),
    **dict.fromkeys(("kormo", "bailingmoe", "bailingmoe2", "llada-moe", "f2llmv2"), _OF_QWEN2),
    "qwen35": Splitting(steps=(_QWEN35,)),
    "deepseek-llm": Splitting(steps=_DEEPSEEK_LLM),
    "deepseek-coder": Splitting(steps=_DEEPSEEK_CODER),
    **dict.fromkeys(("deepseek-v3", "hunyuan-dense", "joyai-llm"), _OF_V3),
    "tekken": Splitting(steps=(_TEKKEN,), whole_words=True, adds_bos=True),
    **dict.fromkeys(("gpt-4o", "llama4", "kanana2", "minimax-m2", "talkie"), Splitting(steps=(_GPT4O,))),
    "falcon": Splitting(steps=_FALCON),
    **dict.fromkeys(("bloom", "gpt3-finnish", "poro-chat"), Splitting(steps=(_BLOOM,))),
    "viking": Splitting(steps=(_BLOOM, r"\p{N}")),
    "seed-coder": Splitting(steps=(_SEED_CODER,)),
    "kimi-k2": Splitting(steps=(_KIMI_K2,)),
    "superbpe": Splitting(steps=(r"\p{N}+", _THREES)),
    "youtu": Splitting(steps=_YOUTU, whole_words=True),
}
NO_BOS: Final = frozenset({"chatglm-bpe", "glm4", "glm5"})  # unless the file names one
