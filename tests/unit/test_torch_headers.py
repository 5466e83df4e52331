"""Headers that lie: whatever a file says, the torch engine refuses it with words or runs it. It never falls over."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
import zoo
from edgellm_torch.architectures import ARCHITECTURES
from edgellm_torch.plugin import TorchPlugin
from hypothesis import given, settings
from hypothesis import strategies as st
from lying_headers import lies
from zoo import Size

from edgellm.contracts.engine import ModelFile, Placement
from edgellm.contracts.runner import Row, SampleSpec
from edgellm.errors import EdgeError, GenerationFailed
from edgellm.formats.gguf import read_model

ROOM = Placement(context=64, capacity=64, max_sequences=2, batch_tokens=32, threads=1, threads_batch=1)
SMALL = Size(layers=2, width=64, ffn=64, heads=4, kv_heads=2, head=16, vocabulary=64, window=8, experts=4)
FAMILIES = sorted(set(ARCHITECTURES) & set(zoo.ZOO))


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, ModelFile]:
    folder: Path = tmp_path_factory.mktemp("zoo")
    return {name: read_model(zoo.write(folder, name, SMALL, tokenizer="llama")) for name in FAMILIES}


@settings(max_examples=150)
@given(st.data())
def test_a_header_that_lies_is_refused_or_run(models: dict[str, ModelFile], data: st.DataObject) -> None:
    model = data.draw(lies(models[data.draw(st.sampled_from(FAMILIES))]))
    plugin = TorchPlugin()
    refusal = plugin.supports(model)
    if refusal is not None:
        assert len(refusal) > 10
        return
    assert plugin.cost_model(model, "f16").needs(64, 2, 32).total > 0
    try:
        runner = plugin.load(model, ROOM, lambda _done: None)
    except EdgeError as error:
        if model.path.name not in error.message:
            pytest.fail(f"which file? {error.message}")
        return
    try:
        (result,) = runner.collect(runner.submit([Row(0, 0, [1, 2, 3], SampleSpec(temperature=0.0))]))
        assert result.error in (None, "nan")
    except GenerationFailed:
        pytest.fail("what cannot run is told before it runs")
    finally:
        runner.close()


@pytest.mark.parametrize("name", FAMILIES)
def test_more_heads_than_the_width_is_told(models: dict[str, ModelFile], name: str) -> None:
    model, arch = models[name], models[name].architecture
    metadata = {key: value for key, value in model.metadata.items() if not key.endswith(("key_length", "value_length"))}
    metadata |= {f"{arch}.attention.head_count": 1 << 20, f"{arch}.rope.dimension_count": 2}
    refusal = TorchPlugin().supports(msgspec.structs.replace(model, metadata=metadata))
    assert refusal is not None
    assert model.path.name in refusal


@pytest.mark.parametrize("name", FAMILIES)
def test_more_layers_than_tensors_are_told_before_anything_is_made_of_them(
    models: dict[str, ModelFile], name: str
) -> None:
    model = models[name]
    metadata = {**model.metadata, f"{model.architecture}.block_count": 1 << 24}
    refusal = TorchPlugin().supports(msgspec.structs.replace(model, metadata=metadata))
    assert refusal is not None
    assert "block_count is 16777216, not at most the" in refusal
