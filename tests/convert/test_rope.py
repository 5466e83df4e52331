"""Positions as transformers writes them, up to version 4 and since, become the same keys."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from edgellm.errors import BadModelFile
from edgellm.library.convert import rope
from edgellm.library.convert.architectures import gemma, llama, phi
from edgellm.library.convert.config import Config

BASE = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 12,
    "num_attention_heads": 4,
    "max_position_embeddings": 4096,
    "vocab_size": 100,
}
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 1024,
}
FACTORS = {"short_factor": [1.0] * 8, "long_factor": [2.0] * 8}


def config(**values: Any) -> Config:
    return Config(Path("config.json"), BASE | values)


def test_llama_3(tmp_path: Path) -> None:
    old = config(rope_theta=5e5, rope_scaling=LLAMA3)
    new = config(rope_parameters=LLAMA3 | {"rope_theta": 5e5})
    assert llama.LLAMA.metadata(old) == llama.LLAMA.metadata(new)
    assert llama.LLAMA.metadata(old)["rope.freq_base"] == 5e5
    (name, factors), *_ = llama.LLAMA.extra(old).items()
    assert name == "rope_freqs.weight"
    assert factors.floats().tolist() == llama.LLAMA.extra(new)[name].floats().tolist()
    assert factors.floats()[[0, -1]].tolist() == [1.0, 8.0]


def test_linear_by_its_oldest_name() -> None:
    found = rope.metadata(config(rope_scaling={"type": "linear", "factor": 4.0}), 16)
    assert (found["rope.scaling.type"], found["rope.scaling.factor"], found["rope.freq_base"]) == ("linear", 4.0, 1e4)


def test_phi_keeps_the_original_context_outside() -> None:
    old = config(rope_scaling={"type": "longrope"} | FACTORS, original_max_position_embeddings=1024, rope_theta=1e4)
    new = config(
        rope_parameters={"rope_type": "longrope", "rope_theta": 1e4, "original_max_position_embeddings": 1024} | FACTORS
    )
    assert phi.PHI3.metadata(old) == phi.PHI3.metadata(new)
    assert phi.PHI3.metadata(old)["rope.scaling.attn_factor"] == pytest.approx((1 + 2 / 10) ** 0.5)  # ln 4 / ln 1024
    short = config(
        rope_scaling={"type": "longrope"} | FACTORS | {"long_factor": [1.0]}, original_max_position_embeddings=9
    )
    with pytest.raises(BadModelFile, match="long_factor"):
        phi.PHI3.extra(short)


def test_gemma_before_and_since() -> None:
    old = config(rope_theta=1e6, rope_local_base_freq=1e4, rope_scaling={"rope_type": "linear", "factor": 8.0})
    kinds = {
        "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6},
        "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
    }
    layers = ["full_attention" if layer % 6 == 5 else "sliding_attention" for layer in range(12)]
    new = config(rope_parameters=kinds, layer_types=layers)
    assert gemma.GEMMA3.metadata(old) == gemma.GEMMA3.metadata(new)
    found = gemma.GEMMA3.metadata(old)
    assert (found["rope.freq_base"], found["rope.freq_base_swa"], found["rope.scaling.factor"]) == (1e6, 1e4, 8.0)
    assert found["attention.sliding_window_pattern"] == [layer % 6 != 5 for layer in range(12)]
    assert gemma.GEMMA3.metadata(config(text_config=BASE))["rope.freq_base"] == 1e6


def test_yarn_attention_factor_is_relative_to_the_engine_s() -> None:
    yarn = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 1024}
    assert rope.metadata(config(rope_scaling=yarn), 16)["rope.scaling.attn_factor"] == pytest.approx(1.0)
    equal = rope.metadata(config(rope_scaling=yarn | {"mscale": 1.0, "mscale_all_dim": 1.0}), 16)
    assert equal["rope.scaling.attn_factor"] == pytest.approx(1 / 1.1386294)
    for key, value in (("beta_fast", 16), ("truncate", False)):
        with pytest.raises(BadModelFile, match=key):
            rope.metadata(config(rope_scaling=yarn | {key: value}), 16)
