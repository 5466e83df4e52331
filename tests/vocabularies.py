"""Small real vocabularies, trained on a few texts in many scripts, and GGUF files that hold nothing else."""

from __future__ import annotations

import io
import json
import random
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from convert.corpus import TEXTS, training_text
from gguf_files import BOOL, F32, I32, STRING, U32, Key, array, build, key

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = range(1, 7)

# Where ways of cutting text differ: letters, digits and spaces of many scripts, marks, line ends, case, apostrophes.
LETTERS = (
    "aZéßſKıİΣςжЖحנअ漢字ひカ가ᄀ𝔘ǅʰªⅫ½²٣७１0123456789"
    "\u0301\u0327\u093e\u0e31\u200d\ufe0f\u20dd"
    " \t\n\r\v\f\u0085\u00a0\u2003\u2028\u3000\u200b\x00\x1f\x7f"
    "'''’stremdvlSTREMDVL"
    '.,;:!?-_/\\()[]{}<>|^~`$+=%&@#*"«»、。！‘“…€©°±👍🏽🇩'
)
EXTRA = (
    "it's IT'S we'll WE'LL I'd I'm they've 'tis ' s'",
    "a  b   c    d\t\te\n\n\nf \n g\r\nh\r\r\n  ",
    "null \x00 bell \x07 escape \x1b[31m delete \x7f next line \x85 end",
    "e\u0301 n\u0303 क्षि ผู้ใหญ่ Z͑ͫ̓ͪ̂ͫ̽͏̴̙A̴̵̜̰͔ͫ͗͢L",
    "1 12 123 1234 12345 ١٢٣٤ १२३४ Ⅷ ½ x²y³",
    "    indented\n\tif (a&&b){return c;} // ok\r\n#include <x.h>\r\n",
    "<s>text</s> <|bos|> <|im_end|><|eos|> <tool>call</tool> <unk> <|bos|",
    "HTTPServer iPhone McDonald ÉCOLE École École ΑΒΓαβγ ДОМдом",
    "漢字かな交じり文。한국어와 中文混排，１２３！　全角　空格",
)


UNMERGED = ("Ġindented", "bell", "Ġdelete", "trailing", "Ġfamily")  # tokens that no merge leads to


class Made(NamedTuple):
    """Lists as a GGUF file has them."""

    model: str
    tokens: list[str]
    types: list[int]
    merges: list[str]
    scores: list[float]
    roles: dict[str, int]


def random_texts(count: int, seed: int) -> list[str]:
    """Every letter beside every other, sooner or later."""
    numbers = random.Random(seed)
    return ["".join(numbers.choices(LETTERS, k=numbers.randint(1, 40))) for _ in range(count)]


def corpus() -> list[str]:
    return [*TEXTS, *EXTRA, *random_texts(150, 7)]


@cache
def byte_pairs(size: int = 1500) -> Made:
    """Byte-level BPE trained on whole texts: merges run across words, so that every cut shows in the tokens."""
    from tokenizers import Tokenizer, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    trainer = trainers.BpeTrainer(
        vocab_size=size,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
        max_token_length=12,
    )
    texts = [*training_text(), *EXTRA, *EXTRA, *random_texts(400, 8)]
    tokenizer.train_from_iterator(texts, trainer)
    model = json.loads(tokenizer.to_str())["model"]
    tokens = sorted(model["vocab"], key=model["vocab"].__getitem__)
    tokens += [word for word in UNMERGED if word not in model["vocab"]]
    merges = [" ".join(pair) for pair in model["merges"]]
    special = ["<|bos|>", "<|eos|>", "<|im_end|>", "<tool>", "<s>"]
    types = [NORMAL] * len(tokens) + [CONTROL, CONTROL, CONTROL, USER_DEFINED, CONTROL]
    roles = {"bos": len(tokens), "eos": len(tokens) + 1}
    return Made("gpt2", [*tokens, *special], types, merges, [], roles)


@cache
def sentencepiece(size: int = 900) -> Made:
    """SentencePiece's BPE with single bytes, trained on the same texts."""
    import sentencepiece as library

    held = io.BytesIO()
    train: Any = library.SentencePieceTrainer.train
    train(
        sentence_iterator=iter(training_text()),
        model_writer=held,
        model_type="bpe",
        vocab_size=size,
        byte_fallback=True,
        normalization_rule_name="identity",
        remove_extra_whitespaces=False,
        user_defined_symbols=["<tool>", "\n\n", "\n"],
        minloglevel=2,
    )
    made = library.SentencePieceProcessor(model_proto=held.getvalue())
    count = range(made.get_piece_size())
    types = [
        UNKNOWN if made.is_unknown(n) else CONTROL if made.is_control(n) else BYTE if made.is_byte(n) else NORMAL
        for n in count
    ]
    tokens = [made.id_to_piece(n) for n in count]
    for text in ("<tool>", "\n\n", "\n"):
        types[tokens.index(text)] = USER_DEFINED
    roles = {"bos": 1, "eos": 2, "unknown": 0}
    return Made("llama", tokens, types, [], [made.get_score(n) for n in count], roles)


@cache
def wordpiece() -> Made:
    """As BERT's, of words of the same texts and pieces of others; and every letter, at a word's beginning and within.

    The library's trainer goes by the order of a hash, which is another one in every process.
    """
    from tokenizers import normalizers, pre_tokenizers

    plain, apart = normalizers.BertNormalizer(lowercase=True), pre_tokenizers.BertPreTokenizer()
    found = {word for text in TEXTS for word, _ in apart.pre_tokenize_str(plain.normalize_str(text))}
    words = sorted(found)
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    letters = [*sorted({letter for word in words for letter in word}), *filter(str.isprintable, LETTERS)]
    tokens = [front + letter for letter in letters for front in ("", "\u2581")]
    tokens += ["\u2581" + word for word in words[::2]]
    for word in words[1::2]:
        tokens += ["\u2581" + word[:3], *filter(None, (word[-3:], word[2:4], word[3:]))]
    tokens = list(dict.fromkeys([*special, *tokens]))
    types = [CONTROL, UNKNOWN, CONTROL, CONTROL, CONTROL, *[NORMAL] * (len(tokens) - len(special))]
    return Made("bert", tokens, types, [], [], {"bos": 2, "unknown": 1, "seperator": 3, "padding": 0, "mask": 4})


def keys(made: Made, pre: str = "", **more: bool | int) -> list[Key]:
    """The tokenizer's part of a header. `more`: flags and numbers under "tokenizer.ggml."."""
    front = "tokenizer.ggml."
    found = [
        key(front + "model", STRING, made.model),
        array(front + "tokens", STRING, made.tokens),
        array(front + "token_type", I32, made.types),
        *(key(f"{front}{role}_token_id", U32, token) for role, token in made.roles.items()),
        *(key(front + name, BOOL if type(value) is bool else U32, value) for name, value in more.items()),
    ]
    if made.model == "gpt2":
        found.append(array(front + "merges", STRING, made.merges))
    if made.scores:
        found.append(array(front + "scores", F32, made.scores))
    return [*found, key(front + "pre", STRING, pre)] if pre else found


def write(path: Path, made: Made, pre: str = "", **more: bool | int) -> Path:
    """A file that is a vocabulary and nothing else."""
    sizes = {"context_length": 64, "embedding_length": 8, "block_count": 1, "feed_forward_length": 8}
    header = [
        key("general.architecture", STRING, "llama"),
        *(key(f"llama.{name}", U32, value) for name, value in sizes.items()),
        key("llama.attention.head_count", U32, 1),
        key("llama.attention.layer_norm_rms_epsilon", F32, 1e-5),
    ]
    path.write_bytes(build([*header, *keys(made, pre, **more)], []))
    return path
