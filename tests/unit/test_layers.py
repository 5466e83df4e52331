"""What each layer keeps, from hand-made headers; tests/contract/test_memory.py holds the same against llama.cpp."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from edgellm.contracts.engine import ModelFile, TensorInfo
from edgellm.formats.layers import LayerMemory, layers

ATTENTION = ("attn_k.weight", "attn_v.weight")


def model(architecture: str, tensors: Mapping[int, tuple[str, ...]], **keys: Any) -> ModelFile:
    """A header of that architecture; in `keys` "__" stands for dots."""
    facts = {"block_count": max(tensors) + 1, "embedding_length": 64, "attention.head_count": 4} | {
        name.replace("__", "."): value for name, value in keys.items()
    }
    metadata = {f"{architecture}.{name}": value for name, value in facts.items() if value is not None}
    found = tuple(
        TensorInfo(f"blk.{layer}.{name}", "F32", (1,), 4, 0) for layer, names in tensors.items() for name in names
    )
    return ModelFile(Path("m.gguf"), 1, architecture, metadata, found)


def attending(architecture: str, count: int, **keys: Any) -> list[LayerMemory]:
    return layers(model(architecture, dict.fromkeys(range(count), ATTENTION), **keys))


def full_layers(architecture: str, count: int, **keys: Any) -> list[int]:
    """The layers that see everything; all others must have the window."""
    found = attending(architecture, count, **keys)
    assert [layer.layer for layer in found] == list(range(count))
    for layer in found:
        assert (layer.kind == "sliding") == (layer.window > 0)
    return [layer.layer for layer in found if layer.kind == "full"]


@pytest.mark.parametrize(
    ("keys", "values"),
    [
        ({}, 4 * (16 + 16)),  # heads x width / heads
        ({"attention__head_count_kv": 2}, 2 * 32),
        ({"attention__head_count_kv": 2, "attention__key_length": 24}, 2 * (24 + 16)),
        ({"attention__head_count_kv": 2, "attention__key_length": 24, "attention__value_length": 8}, 2 * 32),
        ({"attention__head_count": None}, 0),
        ({"attention__head_count_kv": "2"}, 4 * 32),  # of the wrong type: as if it were not there
        ({"attention__head_count": True}, 0),
    ],
)
def test_sizes_of_keys_and_values(keys: dict[str, Any], values: int) -> None:
    assert attending("llama", 1, **keys) == [LayerMemory(0, "full", values)]


def test_heads_may_differ_by_layer() -> None:
    found = attending("deci", 3, attention__head_count_kv=[1, 0, 4])
    assert [layer.values for layer in found] == [32, 0, 128]


@pytest.mark.parametrize("architecture", ["llama", "qwen2", "qwen3", "mistral3", "phi3", "unheard-of"])
def test_windows_that_are_not_used(architecture: str) -> None:
    assert full_layers(architecture, 4, attention__sliding_window=512) == [0, 1, 2, 3]


def test_a_pattern_alone_is_obeyed_by_any_but_phi3() -> None:
    pattern = {"attention__sliding_window": 512, "attention__sliding_window_pattern": [True, False, True]}
    assert full_layers("unheard-of", 3, **pattern) == [1]
    assert full_layers("phi3", 3, **pattern) == [0, 1, 2]


@pytest.mark.parametrize(
    ("architecture", "keys", "full"),
    [
        ("gemma2", {}, [1, 3, 5, 7, 9, 11]),  # the window is known where the file does not name it
        ("gemma3", {}, list(range(12))),
        ("gemma3", {"attention__sliding_window": 512}, [5, 11]),
        ("gemma3", {"attention__sliding_window": 512, "attention__sliding_window_pattern": 4}, [3, 7, 11]),
        ("cohere2", {"attention__sliding_window": 512}, [3, 7, 11]),
        ("gpt-oss", {"attention__sliding_window": 128}, [1, 3, 5, 7, 9, 11]),
        ("smallthinker", {"attention__sliding_window": 512}, [0, 4, 8]),
        ("llama4", {}, [3, 7, 11]),
        ("llama4", {"attention__sliding_window": 0}, list(range(12))),
        ("exaone4", {}, list(range(12))),
    ],
)
def test_windows_by_architecture(architecture: str, keys: dict[str, Any], full: list[int]) -> None:
    assert full_layers(architecture, 12, **keys) == full


def test_windowed_layers_may_have_other_heads() -> None:
    found = attending(
        "gemma4",
        2,
        attention__head_count_kv=[1, 2],
        attention__key_length=512,
        attention__value_length=512,
        attention__key_length_swa=256,
        attention__value_length_swa=256,
        attention__sliding_window=1024,
        attention__sliding_window_pattern=[True, False],
    )
    assert found == [LayerMemory(0, "sliding", 512, window=1024), LayerMemory(1, "full", 2048)]


def test_layers_that_use_the_keys_of_others_keep_none() -> None:
    assert len(attending("gemma3n", 30, attention__sliding_window=512)) == 20
    shared = {"attention__sliding_window": 512, "attention__sliding_window_pattern": [True] * 10}
    assert len(attending("gemma4", 10, attention__shared_kv_layers=4, **shared)) == 6


def test_the_head_that_guesses_ahead_is_not_run() -> None:
    assert len(attending("glm4moe", 5, nextn_predict_layers=1)) == 4


def test_latent_attention_keeps_one_key() -> None:
    absorbed = {
        "attention__head_count_kv": 1,
        "attention__key_length": 576,
        "attention__value_length": 512,
        "attention__key_length_mla": 192,
    }
    tensors = {0: ("attn_kv_a_mqa.weight", "attn_k_b.weight")}
    assert layers(model("deepseek2", tensors, **absorbed)) == [LayerMemory(0, "latent", 576)]
    older = {"attention__key_length": 192, "attention__value_length": 128}
    tensors = {0: ("attn_kv_a_mqa.weight", "attn_kv_b.weight")}
    assert layers(model("deepseek2", tensors, **older)) == [LayerMemory(0, "full", 4 * (192 + 128))]
    sparse = {0: ("attn_kv_a_mqa.weight", "indexer.attn_k.weight")}
    found = layers(model("deepseek32", sparse, attention__indexer__key_length=128, **absorbed))
    assert found == [LayerMemory(0, "latent", 576 + 128)]


SSM = {"ssm__conv_kernel": 4, "ssm__inner_size": 128, "ssm__state_size": 16}


@pytest.mark.parametrize(
    ("architecture", "tensor", "keys", "state"),
    [
        ("mamba", "ssm_in.weight", SSM, 3 * 128 + 16 * 128),
        ("mamba2", "ssm_in.weight", SSM | {"ssm__group_count": 2}, 3 * (128 + 2 * 2 * 16) + 16 * 128),
        ("rwkv6", "time_mix_w1.weight", {"wkv__head_size": 32}, 2 * 64 + 64 * 32),
        ("rwkv7", "time_mix_w1.weight", {"wkv__head_size": 32, "token_shift_count": 1}, 64 + 64 * 32),
        ("lfm2", "shortconv.conv.weight", {"shortconv__l_cache": 3}, 64 * 2),
        ("kimi-linear", "ssm_conv1d_q.weight", {"ssm__conv_kernel": 4, "kda__head_dim": 8}, 3 * 3 * 32 + 8 * 8 * 4),
    ],
)
def test_recurrent_states(architecture: str, tensor: str, keys: dict[str, Any], state: int) -> None:
    assert layers(model(architecture, {0: (tensor,)}, **keys)) == [LayerMemory(0, "recurrent", state=state)]


def test_hybrids() -> None:
    mixed = {0: ("ssm_in.weight",), 1: ATTENTION, 2: ("ffn_up.weight",)}
    kinds = [(layer.layer, layer.kind) for layer in layers(model("nemotron_h", mixed, **SSM))]
    assert kinds == [(0, "recurrent"), (1, "full")]
    both = layers(model("falcon-h1", {0: ("ssm_in.weight", *ATTENTION)}, **SSM))
    assert [layer.kind for layer in both] == ["recurrent", "full"]
    delta = dict.fromkeys(range(8), (*ATTENTION, "ssm_out.weight"))
    found = layers(model("qwen3next", delta, **SSM))
    assert [layer.layer for layer in found if layer.kind == "full"] == [3, 7]
    said = layers(model("qwen35", delta, attention__recurrent_layers=[False, True] * 4, **SSM))
    assert [layer.layer for layer in said if layer.kind == "full"] == [0, 2, 4, 6]


def test_nonsense_is_counted_and_not_raised() -> None:
    odd = {"attention__sliding_window": -1, "attention__sliding_window_pattern": 0, "block_count": 1 << 40}
    assert attending("gemma3", 1, **odd)[0].values == 128
    assert layers(ModelFile(Path("m"), 1, "", {}, ())) == []
    assert layers(model("llama", {0: ()}, block_count=-4)) == []
    assert layers(model("gemma3", {0: ATTENTION}, attention__head_count_kv=[])) == [LayerMemory(0, "full", 0)]
