"""What every Tokenizer promises."""

from __future__ import annotations

import threading
import time
from functools import partial

import pytest
from at_best import at_best, least_cpu_s
from contract.engines import Engine

CORPUS = {
    "english": "The quick brown fox doesn't jump; it's 3.14 metres\tand\n\n  indented.",
    "german": "Zwölf Boxkämpfer jagen Viktor quer über den großen Sylter Deich.",
    "greek": "Ξεσκεπάζω την ψυχοφθόρα βδελυγμία.",
    "russian": "Съешь же ещё этих мягких французских булок.",
    "hebrew": "דג סקרן שט בים מאוכזב",
    "arabic": "نص حكيم له سر قاطع وذو شأن عظيم",
    "hindi": "ऋषियों को सताने वाले दुष्ट राक्षसों के राजा",
    "thai": "เป็นมนุษย์สุดประเสริฐเลิศคุณค่า",
    "chinese": "我能吞下玻璃而不伤身体。漢字も、カタカナも。",
    "korean": "다람쥐 헌 쳇바퀴에 타고파",
    "emoji": "👍🏽 👨‍👩‍👧‍👦 🏳️‍🌈 🇩🇪 1️⃣ ☕",
    "combining": "e\u0301 n\u0303 Z͑ͫ̓ͪ̂ͫ̽͏̴̙̤̞͉͚̯̞̠͍A̴̵̜̰͔ͫ͗͢L",
    "code": "def f(x):\n    return {'a': [x, *x], 'b': f'{x!r:>{8}}'}\r\n",
    "spaces": " leading,  double,   triple, trailing ",
    "control characters": "bell\x07 null\x00 escape\x1b[31m delete\x7f",
    "rare planes": "𝔘𝔫𝔦𝔠𝔬𝔡𝔢 𒀀 \U0010fffd \ufdd0",
}


@pytest.mark.parametrize("name", CORPUS)
def test_bytes_of_the_tokens_are_the_text(engine: Engine, name: str) -> None:
    text = CORPUS[name]
    ids = engine.tokenizer.encode(text, special=False)
    assert b"".join(map(engine.tokenizer.token_bytes, ids)) == text.encode()
    assert all(0 <= token < engine.tokenizer.vocabulary_size for token in ids)


@pytest.mark.parametrize("name", CORPUS)
def test_a_text_is_never_fewer_tokens_than_was_said(engine: Engine, name: str) -> None:
    for text in (CORPUS[name], CORPUS[name] * 20, "".join(engine.tokenizer.special_texts) + CORPUS[name]):
        least = min(len(engine.tokenizer.encode(text, special=special)) for special in (False, True))
        assert engine.tokenizer.fewest(text) <= least


def test_nothing_becomes_nothing(engine: Engine) -> None:
    assert engine.tokenizer.encode("", special=True) == []
    assert engine.tokenizer.encode("", special=False) == []


def test_bos_is_left_to_the_caller(engine: Engine) -> None:
    assert engine.tokenizer.bos not in engine.tokenizer.encode("Hello", special=True)


def test_control_texts_become_control_tokens_only_when_asked(engine: Engine) -> None:
    tokenizer = engine.tokenizer
    assert tokenizer.bos is not None
    name = tokenizer.token_text(tokenizer.bos)
    assert name in tokenizer.special_texts
    assert tokenizer.encode(f"{name}Hello", special=True)[0] == tokenizer.bos
    plain = tokenizer.encode(f"{name}Hello", special=False)
    assert tokenizer.bos not in plain
    assert b"".join(map(tokenizer.token_bytes, plain)) == f"{name}Hello".encode()


def test_control_tokens_have_a_text_and_no_bytes(engine: Engine) -> None:
    tokenizer = engine.tokenizer
    assert tokenizer.eos is not None
    assert tokenizer.eos in tokenizer.end_of_generation
    for token in tokenizer.end_of_generation:
        assert tokenizer.token_bytes(token) == b""
        assert tokenizer.token_text(token)
        assert tokenizer.token_text(token) in tokenizer.special_texts


def test_every_token_has_bytes_and_text(engine: Engine) -> None:
    tokenizer = engine.tokenizer
    step = max(1, tokenizer.vocabulary_size // 500)
    for token in range(0, tokenizer.vocabulary_size, step):
        assert isinstance(tokenizer.token_bytes(token), bytes)
        assert isinstance(tokenizer.token_text(token), str)


def test_tokens_outside_the_vocabulary_are_refused(engine: Engine) -> None:
    for token in (-1, engine.tokenizer.vocabulary_size, 1 << 40):
        with pytest.raises(ValueError):
            engine.tokenizer.token_bytes(token)


def test_surrogates_are_joined_or_replaced(engine: Engine) -> None:
    tokenizer = engine.tokenizer
    whole = tokenizer.encode("a👍b", special=False)
    assert tokenizer.encode("a\ud83d\udc4db", special=False) == whole
    assert tokenizer.encode("a\ud83db", special=False) == tokenizer.encode("a\ufffdb", special=False)


def test_long_runs_come_back_whole(engine: Engine) -> None:
    for run in ("a" * 3000, " " * 3000, "!?" * 1500, "漢字，" * 1000, "ab\u0301" * 1500):
        text = f"before {run} after"
        ids = engine.tokenizer.encode(text, special=True)
        assert b"".join(map(engine.tokenizer.token_bytes, ids)) == text.encode()


def test_control_texts_inside_long_runs_are_found(engine: Engine) -> None:
    tokenizer = engine.tokenizer
    assert tokenizer.bos is not None
    name = tokenizer.token_text(tokenizer.bos)
    for offset in range(690, 712):
        ids = tokenizer.encode("x" * offset + name + "y" * 900, special=True)
        assert ids.count(tokenizer.bos) == 1


def held_back(engine: Engine) -> bool:
    """Whether a thread that ticks waited for most of the time that a long text takes."""
    longest = 0.0
    done = threading.Event()

    def tick() -> None:
        nonlocal longest
        last = time.monotonic()
        while not done.wait(0.01):
            longest, last = max(longest, time.monotonic() - last), time.monotonic()
        longest = max(longest, time.monotonic() - last)

    ticking = threading.Thread(target=tick)
    ticking.start()
    began = time.monotonic()
    engine.tokenizer.encode("3141592653" * 100_000, special=True)
    took = time.monotonic() - began
    done.set()
    ticking.join()
    return longest >= max(0.3, took / 2)


def test_a_long_text_lets_other_threads_go_on(engine: Engine) -> None:
    """A worker's sign of life is one of them: without it the daemon takes the process for dead."""
    assert not all(held_back(engine) for _ in range(3)), "three times: the machine may have stopped, too"


@pytest.mark.parametrize("unit", ["<b>a</b>\n\n", "a{control}"])
def test_time_grows_with_the_text_and_not_with_its_square(engine: Engine, unit: str) -> None:
    """Markup is full of what begins tokens that stand as a whole, and holds some; Gemma's authors added all of HTML."""
    unit = unit.format(control=engine.tokenizer.special_texts[-1])

    def longer() -> float:
        long, short = (partial(engine.tokenizer.encode, unit * times, special=True) for times in (16_000, 1000))
        return least_cpu_s(long, tries=2) / (least_cpu_s(short) + 0.001)

    assert at_best(longer, enough=48) < 48  # 16 times as much text; by its square 256 times
