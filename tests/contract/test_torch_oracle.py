"""The torch engine on quantised files against llama.cpp on the same numbers in F32, which it sums in F32."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch_oracle
import torch_zoo
from convert import llama
from edgellm_torch.tokenizer import TorchTokenizer
from torch_blocks import TYPES, block_bytes, random_blocks
from torch_zoo import FAMILIES, Pair

from edgellm.formats.gguf import read_model

ERROR, KLD, MARGIN = 2e-3, 1e-5, 1e-3
LITE = "deepseek2-lite"  # 26 layers
PROMPT = [1, *np.random.default_rng(1).integers(3, 275, 59).tolist()]


def check(pair: Pair, prompt: list[int] = PROMPT, drawn: int = 12, **how: Any) -> torch_oracle.Distance:
    """Every position of a prompt and of the answer to it; the answer's tokens."""
    context = len(prompt) + drawn + 8
    text, ours = torch_oracle.run(pair.quantised, prompt, context, drawn=drawn, **how)
    assert len(text) == len(prompt) + drawn
    truth = llama.logits(pair.exact, text[:-1], context)
    found = torch_oracle.distance(ours, truth)
    assert found.error <= ERROR
    assert found.kld <= KLD
    torch_oracle.require_agreement(text, len(prompt), ours, truth, MARGIN)
    return found


@pytest.mark.parametrize("family", [name for name in FAMILIES if name != LITE])
def test_every_family(family: str, tmp_path: Path) -> None:
    check(torch_zoo.write(tmp_path, family, "Q4_K"))


@pytest.mark.parametrize("kind", TYPES)
def test_every_block_type(kind: str, tmp_path: Path) -> None:
    check(torch_zoo.write(tmp_path, "llama", kind))


@pytest.mark.slow
@pytest.mark.parametrize("kind", TYPES)
@pytest.mark.parametrize("family", FAMILIES)
def test_every_block_type_in_every_family(family: str, kind: str, tmp_path: Path) -> None:
    if family != LITE or kind in ("F32", "Q4_K", "Q8_0"):
        check(torch_zoo.write(tmp_path, family, kind))


LLAMA3 = [1.0] * 12 + [1.0 + 0.5 * step for step in range(12)] + [8.0] * 8
ROPES: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "linear": ("llama", {"rope.scaling.type": "linear", "rope.scaling.factor": 4.0}, {}),
    "linear, of old files": ("llama", {"rope.scale_linear": 2.0}, {}),
    "a factor without a type": ("qwen2", {"rope.scaling.factor": 2.0}, {}),
    "none, whatever the factor": ("llama", {"rope.scaling.type": "none", "rope.scaling.factor": 4.0}, {}),
    "another base": ("llama", {"rope.freq_base": 500000.0}, {}),
    "yarn": (
        "llama",
        {"rope.scaling.type": "yarn", "rope.scaling.factor": 4.0, "rope.scaling.original_context_length": 64},
        {},
    ),
    "yarn with its own magnitude": (
        "qwen3",
        {
            "rope.scaling.type": "yarn",
            "rope.scaling.factor": 8.0,
            "rope.scaling.original_context_length": 32,
            "rope.scaling.attn_factor": 0.8,
        },
        {},
    ),
    "yarn with borders that llama.cpp leaves aside": (
        "qwen2",
        {
            "rope.scaling.type": "yarn",
            "rope.scaling.factor": 4.0,
            "rope.scaling.original_context_length": 64,
            "rope.scaling.yarn_beta_fast": 16.0,
            "rope.scaling.yarn_beta_slow": 2.0,
        },
        {},
    ),
    "llama 3": ("llama", {"rope.freq_base": 500000.0}, {"rope_freqs.weight": np.array(LLAMA3, np.float32)}),
    "deepseek, yarn without a multiplier": (
        "deepseek3",
        {"rope.scaling.type": "yarn", "rope.scaling.factor": 8.0, "rope.scaling.original_context_length": 64},
        {},
    ),
    "gemma 3, unscaled": ("gemma3", {"rope.scaling.type": "none", "rope.freq_base_swa": 5000.0}, {}),
}


@pytest.mark.parametrize("name", ROPES)
def test_every_way_to_turn_positions(name: str, tmp_path: Path) -> None:
    family, keys, vectors = ROPES[name]
    pair = torch_zoo.write(tmp_path, family, "Q8_0", keys=keys, vectors=vectors)
    check(pair, [1, *np.random.default_rng(2).integers(3, 275, 200).tolist()], 4, chunk=64)


ROUTERS: dict[str, tuple[str, dict[str, Any]]] = {
    "groups with softmax": ("deepseek2", {"expert_group_count": 4, "expert_group_used_count": 2}),
    "weights that add up to one": ("deepseek2", {"expert_weights_norm": True}),
    "softmax over the chosen": ("deepseek2", {"expert_gating_func": 3}),
    "sigmoid without a correction": ("deepseek2", {"expert_gating_func": 2}),
    "a scale that Mixtral does not have": ("mixtral", {"expert_weights_scale": 2.5}),
    "a scale that Qwen does not have": ("qwen3moe", {"expert_weights_scale": 0.5}),
}


@pytest.mark.parametrize("name", ROUTERS)
def test_every_way_to_choose_experts(name: str, tmp_path: Path) -> None:
    family, keys = ROUTERS[name]
    check(torch_zoo.write(tmp_path, family, "Q8_0", keys=keys), drawn=4)


@pytest.mark.parametrize("family", ["gemma2", "gemma3"])
def test_far_beyond_a_window(family: str, tmp_path: Path) -> None:
    """And where a window ends inside a chunk, at its edge, or blocks before it."""
    pair = torch_zoo.write(tmp_path, family, "Q4_0")
    prompt = [1, *np.random.default_rng(3).integers(3, 275, 400).tolist()]
    for chunk in (16, 23, 64):
        check(pair, prompt, 6, chunk=chunk)


def test_a_model_in_several_files(tmp_path: Path) -> None:
    pair = torch_zoo.write(tmp_path, "mixtral", "Q5_K", part=5)
    assert len(list(tmp_path.glob("*-of-*.gguf"))) > 3
    check(pair, drawn=2)


@pytest.mark.parametrize("kv_type", ["f16", "bf16"])
def test_keys_and_values_in_half_the_room(kv_type: str, tmp_path: Path) -> None:
    """Nothing says what is lost; a mistake would lose all."""
    pair = torch_zoo.write(tmp_path, "llama", "Q8_0")
    text, ours = torch_oracle.run(pair.quantised, PROMPT, 128, kv_type=kv_type)
    found = torch_oracle.distance(ours, llama.logits(pair.exact, text, 128))
    assert found.error < 0.02


@pytest.mark.slow
@pytest.mark.parametrize(("family", "layers"), [("gemma2", 46), ("gemma3", 62)])
def test_models_that_are_scaled_otherwise_at_27b(family: str, layers: int, tmp_path: Path) -> None:
    """Nothing else tells them apart than how many layers they have."""
    check(torch_zoo.write(tmp_path, family, "Q8_0", dims=torch_zoo.Dims(layers=layers // 2)), PROMPT[:20], 4)


TEXT = (
    "The lighthouse keeper wrote one line into the thick blue book: “Fog from the north, 3 ships.” "
    "def area(r):\n    return 3.14159 * r ** 2\n"
)


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", ["smollm2", "gemma3"])
def test_the_starter_models(name: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    """Also no further from llama.cpp on the quantised file than that is from the truth, by more than a tenth."""
    path: Path = request.getfixturevalue(name)
    tokenizer = TorchTokenizer(read_model(path))
    ids = tokenizer.encode(TEXT, special=False)
    prompt = [tokenizer.bos, *ids] if tokenizer.adds_bos and tokenizer.bos is not None else ids
    exact = torch_zoo.exact(path, tmp_path)
    text, ours = torch_oracle.run(path, prompt, 256, drawn=8)
    truth = llama.logits(exact, text[:-1], 256)
    exact.unlink()
    theirs = llama.logits(path, text[:-1], 256)
    found = torch_oracle.distance(ours, truth)
    assert found.error <= ERROR
    assert found.kld <= KLD
    torch_oracle.require_agreement(text, len(prompt), ours, truth, MARGIN)
    own = torch_oracle.distance(theirs, truth)
    apart = torch_oracle.distance(theirs, ours)  # the same way round: divergence is not symmetric
    assert apart.error <= 1.1 * own.error
    assert apart.kld <= 1.1 * own.kld


@pytest.mark.parametrize("kind", TYPES)
def test_random_blocks_use_every_bit(kind: str) -> None:
    """Or tests of block types would say less than they seem to."""
    numbers = np.random.default_rng(4)
    raw, values = random_blocks(numbers, kind, (64, 512), 0.05)
    assert values.shape == (64, 512)
    assert np.isfinite(values).all()
    assert 0.03 < float(values.std()) < 0.08
    assert abs(float(values.mean())) < 0.02
    if kind not in ("F32", "F16", "BF16"):
        bits = np.unpackbits(np.asarray(raw), axis=-1).reshape(-1, block_bytes(kind) * 8)
        steady = int((bits.min(0) == bits.max(0)).sum())
        assert steady <= 12  # the exponents of the scales
        assert math.isclose(float(bits.mean()), 0.5, abs_tol=0.1)
