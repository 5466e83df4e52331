"""What a header says in a line."""

from __future__ import annotations

from pathlib import Path

import pytest
from gguf_files import F32, STRING, TENSORS, U32, build, key, tiny

from edgellm.formats.gguf import read_model
from edgellm.formats.gguf_types import FILE_TYPES, TENSOR_TYPES
from edgellm.formats.summary import ModelSummary, summarise


def summary(folder: Path, data: bytes) -> ModelSummary:
    path = folder / "some-file.gguf"
    path.write_bytes(data)
    return summarise(read_model(path))


def test_real_models(smollm2: Path, gemma3: Path) -> None:
    assert summarise(read_model(smollm2)) == ModelSummary(
        "Smollm2 135M 8k Lc100K Mix1 Ep2", "llama", 134_515_008, "Q4_1", 8192, 30, True
    )
    assert summarise(read_model(gemma3)) == ModelSummary(
        "Gemma 3 270m", "gemma3", 268_098_176, "Q4_K_M", 32_768, 18, False
    )


def test_tiny(tmp_path: Path) -> None:
    assert summary(tmp_path, tiny()) == ModelSummary("Tiny", "llama", 64 * 8 + 64, "Q4_1", 128, 2, True)


def test_what_the_file_does_not_say(tmp_path: Path) -> None:
    found = summary(tmp_path, build([key("general.architecture", STRING, "llama")], TENSORS))
    assert found == ModelSummary("some-file", "llama", 576, "Q4_1", 0, 0, False)


def test_values_of_the_wrong_type_count_as_absent(tmp_path: Path) -> None:
    keys = [
        key("general.architecture", STRING, "llama"),
        key("general.name", U32, 7),
        key("general.file_type", STRING, "Q4_1"),
        key("llama.context_length", STRING, "long"),
        key("llama.block_count", F32, 2.0),
        key("tokenizer.chat_template", U32, 1),
    ]
    assert summary(tmp_path, build(keys, TENSORS)) == ModelSummary("some-file", "llama", 576, "Q4_1", 0, 0, False)


def test_an_unknown_file_type_falls_back_to_the_type_that_holds_most(tmp_path: Path) -> None:
    keys = [key("general.architecture", STRING, "llama"), key("general.file_type", U32, 1024)]
    tensors = (("a", 8, (32, 32)), ("b", 0, (32,)))
    assert summary(tmp_path, build(keys, tensors)).quantization == "Q8_0"


def test_names_lose_control_characters(tmp_path: Path) -> None:
    assert summary(tmp_path, tiny("\x1b[2JEvil\u202e\n")).name == "[2JEvil"


@pytest.mark.parametrize("number", TENSOR_TYPES)
def test_tensor_types_are_those_of_the_reference(number: int) -> None:
    from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType

    kind = GGMLQuantizationType(number)
    ours = TENSOR_TYPES[number]
    assert (ours.name, (ours.elements, ours.nbytes)) == (kind.name, GGML_QUANT_SIZES[kind])


def test_no_type_of_the_reference_is_missing() -> None:
    from gguf.constants import GGMLQuantizationType, LlamaFileType

    assert {kind.value for kind in GGMLQuantizationType} == set(TENSOR_TYPES)
    named = {kind.value: kind.name.split("_", 1)[1].removesuffix("_MOE") for kind in LlamaFileType if kind.value < 1024}
    assert named == FILE_TYPES
