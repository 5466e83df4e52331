"""What is particular to families of the torch engine: what they refuse, and what they leave aside."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest
import zoo
from edgellm_torch.architectures import decoder
from edgellm_torch.config import Attention, Experts, Latent
from zoo import Size

from edgellm.contracts.engine import ModelFile
from edgellm.errors import LoadFailed
from edgellm.formats.gguf import read_model

SMALL = Size(layers=3, width=64, ffn=64, heads=4, kv_heads=2, head=16, vocabulary=64, window=8, experts=8)


def model(folder: Path, family: str, **keys: Any) -> ModelFile:
    """With other keys, "__" for dots; None takes one away."""
    made = read_model(zoo.write(folder, family, SMALL))
    new = {f"{family}.{name.replace('__', '.')}": value for name, value in keys.items()}
    metadata = {key: value for key, value in {**made.metadata, **new}.items() if value is not None}
    return msgspec.structs.replace(made, metadata=metadata)


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "one matrix for keys and values": ({"attention__key_length_mla": None}, "of an older form"),
    "scores by position": ({"attention__temperature_scale": 0.1}, "scales its scores by position"),
    "another gating": ({"expert_gating_func": 4}, "expert_gating_func is 4"),
    "groups that do not divide": ({"expert_group_count": 3, "expert_group_used_count": 2}, "expert_group_count is 3"),
    "more groups than there are": ({"expert_group_count": 2, "expert_group_used_count": 3}, "expert_group_count"),
    "groups too small": ({"expert_group_count": 8, "expert_group_used_count": 1}, "expert_group_count is 8"),
    "only layers that guess ahead": ({"nextn_predict_layers": 3}, "nextn_predict_layers is 3"),
    "a negative number of layers": ({"nextn_predict_layers": 9}, "nextn_predict_layers is 9"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_deepseek_cannot_be(name: str, tmp_path: Path) -> None:
    keys, told = REFUSED[name]
    with pytest.raises(LoadFailed) as caught:
        decoder(model(tmp_path, "deepseek2", **keys))
    assert told in caught.value.message
    assert "deepseek2.gguf" in caught.value.message
    assert caught.value.hint


def test_layers_that_guess_ahead_are_left_aside(tmp_path: Path) -> None:
    assert len(decoder(model(tmp_path, "deepseek2", nextn_predict_layers=1)).layers) == 2


def test_yarn_changes_deepseeks_scores_and_not_its_angles(tmp_path: Path) -> None:
    yarn = {"rope__scaling__type": "yarn", "rope__scaling__factor": 40.0, "rope__scaling__yarn_log_multiplier": 0.1}
    plain = decoder(model(tmp_path, "deepseek2")).layers[0].attention
    scaled = decoder(model(tmp_path, "deepseek2", **yarn)).layers[0].attention
    assert isinstance(plain, Latent)
    assert isinstance(scaled, Latent)
    magnitude = 1.3688879454113936  # 1 + 0.1 ln 40: of the scores twice, and out of the angles once
    assert scaled.scale == pytest.approx(plain.scale * magnitude**2)
    assert scaled.rope.attention_factor == pytest.approx(1 / magnitude)


@pytest.mark.parametrize("family", ["gemma2", "gemma3"])
def test_layers_of_gemma_look_back_as_the_file_says(family: str, tmp_path: Path) -> None:
    def windows(**keys: Any) -> list[int]:
        return [layer.attention.window for layer in decoder(model(tmp_path, family, **keys)).layers]

    assert windows(attention__sliding_window_pattern=[False, True, True]) == [0, 8, 8]
    assert windows() == ([8, 0, 8] if family == "gemma2" else [8, 8, 8])
    assert windows(attention__sliding_window=0) == [0, 0, 0]


def test_gemma_3_turns_by_other_angles_within_a_window(tmp_path: Path) -> None:
    keys = {"rope__freq_base": 1e6, "rope__scaling__type": "linear", "rope__scaling__factor": 8.0}
    parts = decoder(model(tmp_path, "gemma3", attention__sliding_window_pattern=[True, False, True], **keys))
    found = []
    for layer in parts.layers:
        assert isinstance(layer.attention, Attention)
        assert layer.attention.rope is not None
        found.append((layer.attention.rope.base, layer.attention.rope.factor))
    assert found == [(1e4, 1.0), (1e6, 8.0), (1e4, 1.0)]


def test_networks_that_every_token_takes_are_as_wide_as_all_shared_experts(tmp_path: Path) -> None:
    layers = decoder(model(tmp_path, "deepseek2")).layers
    assert not isinstance(layers[0].feed, Experts)
    assert isinstance(layers[1].feed, Experts)
    assert layers[1].feed.shared is not None
    assert layers[1].feed.shared.gate.rows == SMALL.ffn
