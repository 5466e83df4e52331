"""The torch engine's tokenizer gives what llama.cpp gives for the same file: ids, bytes, roles."""

from __future__ import annotations

import unicodedata
from functools import partial
from pathlib import Path

import msgspec
import pytest
import vocabularies
from at_best import least_cpu_s
from convert import llama
from edgellm_torch.splitting import KNOWN
from edgellm_torch.tokenizer import TorchTokenizer, frame, refusal
from vocabularies import BYTE, CONTROL, NORMAL, UNKNOWN, UNUSED, USER_DEFINED, Made

from edgellm.contracts.engine import Tokenizer
from edgellm.errors import BadModelFile
from edgellm.formats.gguf import read_model

CORPUS = vocabularies.corpus()


def both(path: Path) -> tuple[TorchTokenizer, Tokenizer]:
    return TorchTokenizer(read_model(path)), llama.tokenizer(path)


def same(path: Path, texts: list[str]) -> TorchTokenizer:
    ours, theirs = both(path)
    assert (ours.bos, ours.eos, ours.adds_bos) == (theirs.bos, theirs.eos, theirs.adds_bos)
    assert ours.end_of_generation == theirs.end_of_generation
    assert ours.special_texts == theirs.special_texts
    assert ours.chat_template == theirs.chat_template
    assert ours.vocabulary_size == theirs.vocabulary_size
    for token in range(ours.vocabulary_size):
        assert ours.token_bytes(token) == theirs.token_bytes(token), token
        assert ours.token_text(token) == theirs.token_text(token), token
    for text in texts:
        for special in (False, True):
            assert ours.encode(text, special=special) == theirs.encode(text, special=special), (text, special)
    return ours


@pytest.mark.parametrize("pre", KNOWN)
def test_every_way_to_cut_text(pre: str, tmp_path: Path) -> None:
    made = vocabularies.byte_pairs()
    same(vocabularies.write(tmp_path / "v.gguf", made, pre), CORPUS)


def test_ways_to_cut_text_differ(tmp_path: Path) -> None:
    """Or the test above would say little: over its texts no two expressions give the same tokens."""
    made = vocabularies.byte_pairs()
    found: dict[tuple[object, ...], str] = {}
    for pre, way in KNOWN.items():
        tokenizer = TorchTokenizer(read_model(vocabularies.write(tmp_path / "v.gguf", made, pre)))
        ids = tuple(tuple(tokenizer.encode(text, special=False)) for text in CORPUS)
        before = found.setdefault(ids, pre)
        assert msgspec.structs.replace(KNOWN[before], adds_bos=False) == msgspec.structs.replace(way, adds_bos=False)


HARD_TO_CUT = {
    "kimi-k2": (
        "a漢b漢\u3005字x's 漢's㐀\ufa0e\U00020001Z'LL",
        "漢ab字 -漢 .a漢\n'漢",
        "ひ漢カ漢가\u30fc漢",
        "12漢3456字7",
    ),
    "superbpe": ("1234567 and 12 or 123, 12345.6789", "½1234 12٣4567 ٣٣٣٣ 1²345", "a1234b\n123456\n\n1234", "1" * 400),
}


@pytest.mark.parametrize("pre", HARD_TO_CUT)
def test_ways_to_cut_text_that_are_hard_to_say(pre: str, tmp_path: Path) -> None:
    path = vocabularies.write(tmp_path / "v.gguf", vocabularies.byte_pairs(), pre)
    same(path, [*HARD_TO_CUT[pre], *vocabularies.random_texts(600, 11)])


@pytest.mark.parametrize("prefix", [None, True, False])
def test_sentencepiece(prefix: bool | None, tmp_path: Path) -> None:
    more = {} if prefix is None else {"add_space_prefix": prefix}
    path = vocabularies.write(tmp_path / "v.gguf", vocabularies.sentencepiece(), "", **more)
    texts = [
        *CORPUS,
        "\u2581",
        "a\u2581b \u2581\u2581 c",
        "<0x41>",
        "aaaaaaaaaaaaa",
        "\n\n\n\n\n",
        " " * 50,
        "漢字" * 400,
    ]
    same(path, texts)


def test_merges_by_score_are_taken_from_the_left(tmp_path: Path) -> None:
    """Unions of equal score, a union that comes about in two ways, spaces inside tokens, letters that are no token."""
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    types = [UNKNOWN, CONTROL, CONTROL, *[BYTE] * 256]
    words = {"a": 0, "b": 0, "aa": -1, "bb": -1, "ab": -1, "aaa": -2, "aba": -2, "\u2581a": -1, "a\u2581": -1}
    words |= {"a\u2581b": -3, "xy": -1, "éa": 2, "aab": -2, "\u2581\u2581": 1, "\u2581": 0}
    made = Made(
        "llama",
        [*tokens, *words],
        [*types, *[NORMAL] * len(words)],
        [],
        [*[0.0] * len(tokens), *map(float, words.values())],
        {"bos": 1, "eos": 2, "unknown": 0},
    )
    texts = ["".join("ab xyé"[number // 6**place % 6] for place in range(6)) for number in range(0, 6**6, 7)]
    same(vocabularies.write(tmp_path / "v.gguf", made), texts)


PLAIN = {
    "as it comes": {},
    "cased": {"normalizer.lowercase": False},
    "lower case with accents": {"normalizer.strip_accents": False},
    "cased without accents": {"normalizer.lowercase": False, "normalizer.strip_accents": True},
}


@pytest.mark.parametrize("how", PLAIN)
def test_wordpiece(how: str, tmp_path: Path) -> None:
    path = vocabularies.write(tmp_path / "v.gguf", vocabularies.wordpiece(), "", **PLAIN[how])
    words = ["supercalifragilistic" * 500, "a" * 20_000, "漢" * 300, "한국어" * 50, "\U0001f44d\U0001f3fd" * 9]
    marks = ["e\u0301\u0327", "İIıΣσς ǅ ÅÅÅ", "a\u00adb\u200bc\ufeffd\x00e\ufffdf", "\u2581the"]
    ours = same(path, [*CORPUS, *words, *marks, " ".join(words)])
    assert frame(read_model(path)) == ((2,), (3,))
    control = "[CLS] [MASK]a[SEP]"
    assert ours.encode(control, special=False) == llama.tokenizer(path).encode(control, special=False)
    assert ours.encode(control, special=True) == [2, 4, *ours.encode("a", special=False), 3]


def test_wordpiece_with_every_character(tmp_path: Path) -> None:
    """What is a word, what is dropped and what parts words, among letters that are tokens."""
    path = vocabularies.write(tmp_path / "v.gguf", vocabularies.wordpiece())
    ours, theirs = both(path)
    for start in range(0, 0x110000, 256):
        codes = [code for code in range(start, start + 256) if unicodedata.category(chr(code)) not in ("Cs", "Cn")]
        text = " ".join(f"a{chr(code)}b" for code in codes)
        assert ours.encode(text, special=False) == theirs.encode(text, special=False), hex(start)


def test_wordpiece_without_what_it_needs(tmp_path: Path) -> None:
    """Numbers that the file does not give are those of the first BERT; beyond the vocabulary, nothing."""
    made = vocabularies.wordpiece()._replace(roles={})
    path = vocabularies.write(tmp_path / "v.gguf", made)
    same(path, ["the light"])
    assert frame(read_model(path)) == ((101,), (102,))
    few = Made("bert", ["[UNK]", "\u2581a", "b"], [UNKNOWN, NORMAL, NORMAL], [], [], {})
    path = vocabularies.write(tmp_path / "few.gguf", few)
    assert frame(read_model(path)) == ((), ())
    tokenizer = TorchTokenizer(read_model(path))
    assert tokenizer.encode("ab x abb", special=False) == [1, 2, 1, 2, 2]


KINDS = {
    "<|eot_id|>": NORMAL,
    "<|endoftext|>": CONTROL,
    "<|fim_pad|>": USER_DEFINED,
    "<|fim_prefix|>": NORMAL,
    "<|file_sep|>": CONTROL,
    "<|channel|>": CONTROL,
    "<pad>": UNUSED,
    "<odd>": 9,
    "<longer": USER_DEFINED,
    "<longer><": USER_DEFINED,
    "><|im": CONTROL,
    "<|return|>": NORMAL,
}


def special(**roles: int) -> Made:
    made = vocabularies.byte_pairs()
    return made._replace(
        tokens=[*made.tokens, *KINDS], types=[*made.types, *KINDS.values()], roles=dict(made.roles, **roles)
    )


def test_tokens_known_by_their_texts(tmp_path: Path) -> None:
    texts = [
        "a<|im_end|>b<|endoftext|><|fim_pad|>",
        "<longer><|im_end|>",
        "<longer><longer><|im",
        "<pad><odd><|channel|>",
    ]
    same(vocabularies.write(tmp_path / "v.gguf", special(), "gpt-2"), [*CORPUS, *texts])


def test_ends_of_other_families_are_told_apart(tmp_path: Path) -> None:
    for others in (
        ("<|end|>", "<|call|>"),
        ("<|end|>", "<|call|>", "<|return|>"),
        ("<|end|>", "<|calls|>", "<|flush|>"),
    ):
        made = vocabularies.byte_pairs()
        made = made._replace(tokens=[*made.tokens, *others], types=[*made.types, *[CONTROL] * len(others)])
        same(vocabularies.write(tmp_path / "v.gguf", made, "gpt-4o"), ["a<|end|>b", "<|call|>"])
    made = vocabularies.byte_pairs()
    both_ends = ("</s>", "<|tool_response>")
    made = made._replace(tokens=[*made.tokens, *both_ends], types=[*made.types, CONTROL, CONTROL])
    same(vocabularies.write(tmp_path / "v.gguf", made, "gpt-2"), ["a</s>b"])


@pytest.mark.parametrize(
    "roles",
    [
        {},
        {"bos": 5, "eos": 6, "eot": 7, "eom": 8},
        {"bos": 99_999, "eos": 3},
        {"fim_rep": 9, "fim_sep": 10, "fim_pad": 11, "prefix": 12},
    ],
    ids=str,
)
def test_roles(roles: dict[str, int], tmp_path: Path) -> None:
    made = special()._replace(roles=roles)
    for pre in ("gpt-2", "llama-bpe", "glm4"):
        for bos in (None, True, False):
            more = {} if bos is None else {"add_bos_token": bos}
            same(vocabularies.write(tmp_path / "v.gguf", made, pre, **more), ["plain <|im_end|>"])


def test_the_starter_models(smollm2: Path, gemma3: Path) -> None:
    for path in (smollm2, gemma3):
        ours = same(path, CORPUS)
        runs = [letter * 600 for letter in " \n<a\t"]  # more than any token is long
        texts = ["".join(ours.special_texts[:40]), *runs, *(f"a {text}\n{text} b" for text in ours.special_texts[:40])]
        theirs = llama.tokenizer(path)
        for text in texts:
            for special in (False, True):
                assert ours.encode(text, special=special) == theirs.encode(text, special=special), text


def test_plain_text_never_becomes_a_control_token(tmp_path: Path) -> None:
    """Not even where merges lead to one, or a word that is a token counts as a whole."""
    made = vocabularies.byte_pairs()
    stop = len(made.tokens)
    tokens, types = [*made.tokens, "zqzq", "zq"], [*made.types, CONTROL, NORMAL]
    made = made._replace(tokens=tokens, types=types, merges=["z q", "zq zq", *made.merges])
    for pre in ("gpt-2", "llama-bpe"):
        tokenizer = TorchTokenizer(read_model(vocabularies.write(tmp_path / "v.gguf", made, pre)))
        assert tokenizer.encode("zqzq", special=True) == [stop]
        assert tokenizer.encode("zqzq", special=False) == [stop + 1, stop + 1]


def test_an_unknown_way_to_cut_text_is_refused(tmp_path: Path) -> None:
    path = vocabularies.write(tmp_path / "v.gguf", vocabularies.byte_pairs(), "of-tomorrow\x1b[2J")
    told = "how its tokenizer cuts text is not known: of-tomorrow\\x1b[2J"
    assert refusal(read_model(path)) == told
    with pytest.raises(BadModelFile) as caught:
        TorchTokenizer(read_model(path))
    assert told in caught.value.message
    assert caught.value.hint


def test_another_kind_of_tokenizer_is_refused(tmp_path: Path) -> None:
    path = vocabularies.write(tmp_path / "v.gguf", vocabularies.byte_pairs()._replace(model="rwkv"))
    assert refusal(read_model(path)) == "its tokenizer is rwkv; known are bert, gpt2, llama"
    with pytest.raises(BadModelFile, match="its tokenizer is rwkv"):
        TorchTokenizer(read_model(path))


def test_vocabularies_without_bytes(tmp_path: Path) -> None:
    """What cannot be written is the unknown token."""
    made = Made("llama", ["<unk>", "<s>", "</s>", "a"], [UNKNOWN, CONTROL, CONTROL, NORMAL], [], [0.0] * 4, {})
    path = vocabularies.write(tmp_path / "v.gguf", made, add_space_prefix=False)
    tokenizer = TorchTokenizer(read_model(path))
    assert tokenizer.encode("abéa", special=False) == [3, 0, 0, 3]


@pytest.mark.parametrize("model", ["gpt2", "bert"])
def test_many_marks_on_one_letter_take_no_time_by_their_square(model: str, tmp_path: Path) -> None:
    """Both bring text into a normal form first, and a worker in the middle of that gives no sign of life."""
    made = vocabularies.wordpiece() if model == "bert" else vocabularies.byte_pairs()
    text = "e" + "\u0301\u0323" * 50_000
    for tokenizer in both(vocabularies.write(tmp_path / "v.gguf", made, "qwen2" if model == "gpt2" else "")):
        encode = partial(tokenizer.encode, text, special=True)
        assert encode()
        assert least_cpu_s(encode, enough=5) < 5  # by their square: 12 s
