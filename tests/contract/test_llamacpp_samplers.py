"""Our chain against llama.cpp's own samplers: what they leave of a row, and with which logits."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from edgellm_llamacpp.native import Library, Model, library, open_vocabulary
from edgellm_llamacpp.penalties import reweighed
from edgellm_llamacpp.sampling import choose

from edgellm.contracts.runner import SampleSpec

Floats = npt.NDArray[np.float32]
MakeSampler = Callable[[Any], Any]  # the binding -> a sampler
SIZE = 500


@pytest.fixture(scope="module")
def lib() -> Library:
    return library()


def row(seed: int) -> Floats:
    return (np.random.default_rng(seed).normal(size=SIZE) * 2).astype(np.float32)


def left_by(api: Any, sampler: Any, logits: Floats, history: Sequence[int] = ()) -> dict[int, float]:
    """Apply one of llama.cpp's samplers, which has accepted `history`: the tokens left and their logits."""
    data = (api.llama_token_data * logits.size)()
    for token, logit in enumerate(logits.tolist()):
        data[token] = api.llama_token_data(token, logit, 0.0)
    tokens = api.llama_token_data_array(data, logits.size, -1, False)
    for token in history:
        api.llama_sampler_accept(sampler, token)
    api.llama_sampler_apply(sampler, ctypes.byref(tokens))
    left = {tokens.data[i].id: tokens.data[i].logit for i in range(tokens.size)}
    api.llama_sampler_free(sampler)
    return left


def drawn_by(spec: SampleSpec, logits: Floats, draws: int) -> set[int]:
    return {choose(logits, spec, position)[0] or 0 for position in range(draws)}


CUTS: dict[str, tuple[MakeSampler, dict[str, Any]]] = {
    "top-k": (lambda api: api.llama_sampler_init_top_k(7), {"top_k": 7}),
    "top-p": (lambda api: api.llama_sampler_init_top_p(0.3, 1), {"top_p": 0.3}),
    "min-p": (lambda api: api.llama_sampler_init_min_p(0.2, 1), {"min_p": 0.2}),
    "typical-p": (lambda api: api.llama_sampler_init_typical(0.2, 1), {"typical_p": 0.2}),
    "XTC, after top-p": (
        lambda api: api.llama_sampler_init_xtc(1.0, 0.05, 1, 1),
        {"top_p": 0.3, "xtc_probability": 1.0, "xtc_threshold": 0.05},
    ),
}


@pytest.mark.parametrize("name", CUTS)
def test_the_same_tokens_are_kept(lib: Library, name: str) -> None:
    """At a temperature that makes all that is kept equally likely, every one of them is drawn before long."""
    make, fields = CUTS[name]
    for seed in range(4):
        logits = row(seed)
        left = left_by(lib.api, make(lib.api), given := _nucleus(lib, logits) if "after" in name else logits)
        expected = {token for token in left if given[token] > -np.inf}
        assert drawn_by(SampleSpec(temperature=1e6, **fields), logits, 12 * len(expected) + 60) == expected


def _nucleus(lib: Library, logits: Floats) -> Floats:
    left = left_by(lib.api, lib.api.llama_sampler_init_top_p(0.3, 1), logits)
    masked = np.full_like(logits, -np.inf)
    masked[list(left)] = list(left.values())
    return masked


HISTORIES = {
    "varied": tuple(np.random.default_rng(1).integers(0, 9, 60).tolist()),
    "periodic": (1, 2, 3, 4, 5) * 8 + (1, 2),
    "one token": (6,) * 30,
    "with breaks": (1, 2, 3, 4, 8, 1, 2, 3, 7, 1, 2, 3),
    "short": (1,),
    "none": (),
}


@pytest.mark.parametrize("name", HISTORIES)
@pytest.mark.parametrize("last", [0, 5, 64])
def test_penalties_are_the_same(lib: Library, name: str, last: int) -> None:
    history = HISTORIES[name]
    spec = SampleSpec(repeat_penalty=1.3, presence_penalty=0.4, frequency_penalty=0.15, repeat_last_n=last)
    logits = row(9)
    left = left_by(lib.api, lib.api.llama_sampler_init_penalties(SIZE, last, 1.3, 0.15, 0.4), logits, history)
    ours = reweighed(logits, spec, history, ())
    np.testing.assert_allclose(ours, [left[token] for token in range(SIZE)], rtol=1e-5, atol=1e-5)


@pytest.fixture(scope="module")
def model(lib: Library, smollm2: Path) -> Model:
    return open_vocabulary(lib, smollm2)


@pytest.mark.parametrize("name", HISTORIES)
@pytest.mark.parametrize(("allowed", "last", "breaks"), [(2, 200, False), (1, 12, False), (3, 200, True)])
def test_dry_is_the_same(lib: Library, model: Model, name: str, allowed: int, last: int, breaks: bool) -> None:
    """With a breaker that is one token: llama.cpp also knows breakers of several."""
    history = HISTORIES[name]
    breaker = _one_token(lib, model, 8) if breaks else b""
    names = (ctypes.c_char_p * 1)(breaker)
    sampler = lib.api.llama_sampler_init_dry(model.vocabulary, 0.8, 1.75, allowed, last, names, int(breaks))
    logits = row(11)
    left = left_by(lib.api, sampler, logits, history)
    spec = SampleSpec(
        dry_multiplier=0.8, dry_base=1.75, dry_allowed_length=allowed, dry_last_n=last,
        dry_breakers=frozenset({8}) if breaks else frozenset(),
    )  # fmt: skip
    ours = reweighed(logits, spec, history, ())
    np.testing.assert_allclose(ours, [left[token] for token in range(SIZE)], rtol=1e-5, atol=1e-5)


def _one_token(lib: Library, model: Model, token: int) -> bytes:
    buffer = ctypes.create_string_buffer(64)
    size = lib.api.llama_token_to_piece(model.vocabulary, token, buffer, 64, 0, True)
    return buffer.raw[:size]
