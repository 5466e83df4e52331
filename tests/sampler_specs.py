"""Chains to try every engine's sampler with, and rows of logits."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from hypothesis import strategies as st

from edgellm.contracts.runner import SampleSpec

Floats = npt.NDArray[np.float32]


def row(size: int, seed: int = 0, spread: float = 3.0) -> Floats:
    return (np.random.default_rng(seed).normal(size=size) * spread).astype(np.float32)


def spec(temperature: float = 1.0, top_k: int = 0, top_p: float = 1.0, seed: int = 0) -> SampleSpec:
    return SampleSpec(temperature=temperature, top_k=top_k, top_p=top_p, seed=seed)


SPECS = {
    "greedy": spec(temperature=0),
    "plain": spec(),
    "hot": spec(temperature=2.5),
    "cold": spec(temperature=0.1),
    "top-k": spec(top_k=40),
    "top-p": spec(top_p=0.9),
    "usual": spec(temperature=0.7, top_k=50, top_p=0.9),
    "small nucleus": spec(top_p=0.01),
    "large k": spec(top_k=5000, top_p=0.99),
    "min-p": SampleSpec(min_p=0.05),
    "min-p of few": SampleSpec(min_p=0.2, top_k=30),
    "typical": SampleSpec(typical_p=0.6),
    "typical of few": SampleSpec(typical_p=0.4, top_k=50),
    "xtc": SampleSpec(xtc_probability=0.6, xtc_threshold=0.02),
    "xtc of few": SampleSpec(xtc_probability=0.6, xtc_threshold=0.02, top_p=0.9, temperature=0.7),
    "mirostat": SampleSpec(mirostat=2, mirostat_tau=3, temperature=0.9, top_k=1),
    "bias": SampleSpec(logit_bias={3: 4.0, 5: -100.0, 11: 2.5}),
    "repeat": SampleSpec(repeat_penalty=1.3),
    "repeat, biased, greedy": SampleSpec(repeat_penalty=1.3, logit_bias={7: 6.0}, temperature=0),
    "presence and frequency": SampleSpec(presence_penalty=0.7, frequency_penalty=0.4, repeat_last_n=-1, top_p=0.9),
    "dry": SampleSpec(dry_multiplier=0.8, dry_allowed_length=1, dry_breakers=frozenset({2})),
    "everything": SampleSpec(
        temperature=0.8, top_k=60, typical_p=0.97, top_p=0.95, min_p=0.01, xtc_probability=0.5, xtc_threshold=0.05,
        logit_bias={3: 2.0}, repeat_penalty=1.1, presence_penalty=0.2, frequency_penalty=0.1, dry_multiplier=0.5,
        dry_last_n=20,
    ),
}  # fmt: skip
PATTERN = (1, 2, 3, 4, 1, 2, 3, 9, 9, 9, 4, 30, 1, 2, 3)  # a history with repetitions

FIELDS: dict[str, st.SearchStrategy[object]] = {
    "temperature": st.sampled_from([0.0, 0.3, 1.0, 1e6]),  # at the last, every token that is kept is as likely
    "top_k": st.integers(0, 40),
    "top_p": st.sampled_from([0.05, 0.5, 0.9, 1.0]),
    "min_p": st.sampled_from([0.0, 0.01, 0.3]),
    "typical_p": st.sampled_from([0.3, 0.9, 1.0]),
    "logit_bias": st.dictionaries(st.integers(0, 19), st.floats(-100, 100), max_size=5),
    "repeat_penalty": st.sampled_from([1.0, 1.1, 0.7, 3.0]),
    "repeat_last_n": st.integers(-1, 30),
    "presence_penalty": st.sampled_from([0.0, 0.5, -1.5]),
    "frequency_penalty": st.sampled_from([0.0, 0.3, -0.2]),
    "dry_multiplier": st.sampled_from([0.0, 0.8]),
    "dry_base": st.sampled_from([1.0, 1.75]),
    "dry_allowed_length": st.integers(1, 4),
    "dry_last_n": st.integers(-1, 30),
    "dry_breakers": st.frozensets(st.integers(0, 3), max_size=2),
    "xtc_probability": st.sampled_from([0.0, 0.5, 1.0]),
    "xtc_threshold": st.sampled_from([0.0, 0.05, 0.3]),
    "mirostat": st.sampled_from([0, 0, 2]),
    "mirostat_tau": st.sampled_from([2.0, 5.0]),
    "seed": st.integers(0, 1 << 64),
}
