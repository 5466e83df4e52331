"""Encoders on the torch engine: headers that lie, parts that are refused, and which models make embeddings at all."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import torch
import torch_zoo
from edgellm_torch.devices import Device, device_for
from edgellm_torch.encoder import EncoderModel, slopes
from edgellm_torch.plugin import plugin
from hypothesis import given, settings
from hypothesis import strategies as st
from lying_headers import lies
from torch_encoders import ENCODERS
from torch_zoo import Dims

from edgellm.contracts.engine import ModelFile, Placement
from edgellm.errors import EdgeError, GenerationFailed, LoadFailed
from edgellm.formats.gguf import read_model

ROOM = Placement(context=64, capacity=64, max_sequences=2, batch_tokens=64, threads=1, threads_batch=1)
SMALL = Dims(layers=2, width=64, ffn=64, heads=4, head=16, context=64)
FAMILIES = sorted(set(ENCODERS) - {"jina-bert-v2"})  # which takes a width of its own


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, ModelFile]:
    folder: Path = tmp_path_factory.mktemp("encoders")
    return {
        name: read_model(torch_zoo.write(folder, name, "Q8_0", dims=SMALL, families=ENCODERS).quantised)
        for name in FAMILIES
    }


@settings(max_examples=150)
@given(st.data())
def test_a_header_that_lies_is_refused_or_run(models: dict[str, ModelFile], data: st.DataObject) -> None:
    model = data.draw(lies(models[data.draw(st.sampled_from(FAMILIES))]))
    refusal = plugin.embeds(model)
    if refusal is not None:
        assert len(refusal) > 10
        return
    assert plugin.embedding_cost(model, 64).needs(64, 2, 64).total > 0
    try:
        runner = plugin.load_embedder(model, ROOM, lambda _done: None)
    except EdgeError as error:
        if model.path.name not in error.message:
            pytest.fail(f"which file? {error.message}")
        return
    try:
        assert runner.embed([[1, 2, 3], [4]]).shape == (2, 64)
    except GenerationFailed:
        pytest.fail("what cannot run is told before it runs")
    finally:
        runner.close()


def changed(model: ModelFile, **keys: Any) -> ModelFile:
    """With other keys, "__" for dots; None takes one away."""
    new = {f"{model.architecture}.{name.replace('__', '.')}": value for name, value in keys.items()}
    metadata = {key: value for key, value in {**model.metadata, **new}.items() if value is not None}
    return msgspec.structs.replace(model, metadata=metadata)


REFUSED: dict[str, tuple[str, dict[str, Any], str]] = {
    "heads that do not share the width": ("bert", {"attention__head_count": 7}, "7 heads, 7 of keys"),
    "heads that do not share keys": ("bert", {"attention__head_count_kv": 3}, "4 heads, 3 of keys"),
    "more heads than the width": ("bert", {"attention__head_count": 65}, "65 heads"),
    "no epsilon": ("bert", {"attention__layer_norm_epsilon": None}, "layer_norm_epsilon is missing"),
    "no context": ("nomic-bert", {"context_length": None}, "context_length is missing"),
    "more positions than there are": ("bert", {"context_length": 65}, "position_embd.weight has the shape (64, 64)"),
    "angles for more than a head": ("nomic-bert", {"rope__dimension_count": 32}, "a head has 16 numbers"),
    "no pooling": ("bert", {"pooling_type": None}, "does not say how embeddings are pooled"),
    "every token by itself": ("bert", {"pooling_type": 0}, "does not say how embeddings are pooled"),
    "a model that ranks": ("bert", {"pooling_type": 4}, "or it is a model that ranks"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_an_encoder_cannot_be(name: str, models: dict[str, ModelFile]) -> None:
    family, keys, told = REFUSED[name]
    model = changed(models[family], **keys)
    assert told in (plugin.embeds(model) or "")
    with pytest.raises(LoadFailed) as caught:
        plugin.load_embedder(model, ROOM, lambda _done: None)
    assert told in caught.value.message
    assert caught.value.hint


def test_a_bias_in_parts_beside_one_matrix_is_refused(tmp_path: Path) -> None:
    vectors = {f"blk.0.attn_{part}.bias": np.zeros(64, np.float32) for part in "qkv"}
    path = torch_zoo.write(tmp_path, "nomic-bert", "Q8_0", dims=SMALL, families=ENCODERS, vectors=vectors).quantised
    assert "is in three parts" in (plugin.embeds(read_model(path)) or "")


def test_which_models_make_embeddings(tmp_path: Path, models: dict[str, ModelFile]) -> None:
    decoder = read_model(torch_zoo.write(tmp_path, "qwen3", "Q8_0").quantised)
    assert plugin.embeds(decoder) == "this qwen3 model is not made for embeddings"
    assert plugin.supports(decoder) is None
    pooled = changed(decoder, pooling_type=3)
    assert plugin.embeds(pooled) is None
    assert plugin.supports(pooled) == "this qwen3 model makes embeddings, not text"
    assert plugin.embeds(changed(pooled, attention__causal=False)) is None
    for family in ("gemma2", "deepseek2"):
        other = read_model(torch_zoo.write(tmp_path, family, "Q8_0").quantised)
        told = plugin.embeds(changed(other, attention__causal=False, pooling_type=1))
        assert told == f"tokens of this {family} model see what follows them, through windows, caps or latents"
    assert plugin.supports(models["bert"]) == "this bert model makes embeddings, not text"
    unknown = msgspec.structs.replace(changed(pooled, pooling_type=None), architecture="t5encoder")
    assert "does not run the architecture t5encoder" in (
        plugin.embeds(msgspec.structs.replace(unknown, metadata={**unknown.metadata, "t5encoder.pooling_type": 1}))
        or ""
    )
    assert (
        plugin.embeds(msgspec.structs.replace(models["bert"], tensors=()))
        == "the file holds a vocabulary and no weights"
    )
    foreign = {**models["bert"].metadata, "tokenizer.ggml.model": "t5"}
    assert "its tokenizer is t5" in (plugin.embeds(msgspec.structs.replace(models["bert"], metadata=foreign)) or "")


def test_a_failure_is_told_but_a_device_that_failed_ends_the_process(
    models: dict[str, ModelFile], monkeypatch: pytest.MonkeyPatch
) -> None:
    raised: dict[type[Exception], type[Exception]] = {
        RuntimeError: GenerationFailed,
        torch.AcceleratorError: torch.AcceleratorError,
    }
    runner = plugin.load_embedder(models["bert"], ROOM, lambda _done: None)
    for error, expected in raised.items():

        def fail(*_: Any, error: type[Exception] = error) -> None:
            raise error("an illegal memory access was encountered")

        monkeypatch.setattr(EncoderModel, "__call__", fail)
        with pytest.raises(expected):
            runner.embed([[1]])
    runner.close()


def test_slopes_are_those_of_the_paper() -> None:
    assert slopes(8, 8.0) == [2.0**-n for n in range(1, 9)]
    between = [2.0 ** -(n / 2) for n in range(1, 9, 2)]
    assert slopes(12, 8.0) == pytest.approx([*slopes(8, 8.0), *between])
    assert slopes(1, 8.0) == [2.0**-8]


def gpu(number: int, mib: int) -> Device:
    return Device(f"cuda:{number}", f"GPU {number}", mib << 20)


def test_an_embedder_goes_to_the_gpu_with_most_room_if_it_fits_there() -> None:
    found = [gpu(0, 400), gpu(1, 900), gpu(2, 800)]
    assert device_for(850 << 20, 0, found) == ("cuda:1", "")
    assert device_for(850 << 20, 12, found) == ("cuda:1", "")
    assert device_for(901 << 20, 0, found) == ("cpu", "of the 901 MiB that the model takes 900 are free on GPU 1")
    assert device_for(1, 0, []) == ("cpu", "")
    with pytest.raises(LoadFailed, match="gpu_layers is 12, and of the 901 MiB"):
        device_for(901 << 20, 12, found)
    with pytest.raises(LoadFailed, match="gpu_layers is 12, and there is no GPU"):
        device_for(1, 12, [])
