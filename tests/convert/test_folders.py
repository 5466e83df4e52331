"""What a conversion writes, streams and refuses, without torch."""

from __future__ import annotations

import json
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from convert import folders
from edgellm.errors import BadModelFile, EdgeError, InvalidRequest, NotFound
from edgellm.formats.gguf import read_model
from edgellm.library.convert.convert import plan_conversion
from edgellm.library.convert.weights import Weight, encoded, of_floats
from edgellm.library.convert.write import write_file


def change(path: Path, **values: Any) -> None:
    """Change keys of a JSON file; None removes one."""
    found = json.loads(path.read_text()) | values
    path.write_text(json.dumps({key: value for key, value in found.items() if value is not None}))


def bits(values: Any) -> Any:
    """float32 to bfloat16, cut off."""
    return (np.asarray(values, np.float32).view(np.uint32) >> 16).astype(np.uint16)


def test_the_file_says_what_the_folder_says(tmp_path: Path) -> None:
    folder = folders.llama(tmp_path / "Tiny Llama", rope_theta=500_000.0)
    (folder / "README.md").write_text("---\nlicense: apache-2.0\ntags: [x]\n---\n# Tiny")
    target = tmp_path / "tiny.gguf"
    write_file(plan_conversion(folder), target, lambda _: None)
    model = read_model(target)
    said = model.metadata
    assert (model.architecture, said["general.name"], said["general.license"]) == ("llama", "Tiny Llama", "apache-2.0")
    assert (said["llama.context_length"], said["llama.rope.freq_base"]) == (128, 500_000.0)
    assert (said["llama.attention.head_count"], said["llama.attention.head_count_kv"]) == (4, 2)
    assert said["tokenizer.chat_template"].startswith("{% for m")
    assert (said["tokenizer.ggml.bos_token_id"], said["tokenizer.ggml.eos_token_id"]) == (0, 1)
    assert {tensor.type for tensor in model.tensors} == {"F32"}
    assert [tensor.shape for tensor in model.tensors if tensor.name == "blk.1.ffn_down.weight"] == [(48, 32)]


def test_norms_stay_exact_whatever_the_type(tmp_path: Path) -> None:
    target = tmp_path / "tiny.gguf"
    write_file(plan_conversion(folders.llama(tmp_path / "m"), "BF16"), target, lambda _: None)
    kinds = {tensor.name: tensor.type for tensor in read_model(target).tensors}
    assert (kinds["blk.0.attn_norm.weight"], kinds["blk.0.attn_q.weight"]) == ("F32", "BF16")


def test_what_is_bfloat16_is_copied_to_the_bit(tmp_path: Path) -> None:
    tensors = {name: bits(values) for name, values in folders.llama_tensors().items()}
    conversion = plan_conversion(folders.llama(tmp_path, tensors))
    assert conversion.type == "BF16"
    for tensor in conversion.tensors:
        if tensor.name == "blk.0.ffn_up.weight":
            assert b"".join(tensor.chunks()) == tensors["model.layers.0.mlp.up_proj.weight"].tobytes()


def test_rounding_to_bfloat16_is_to_the_nearest_even() -> None:
    values = np.array([1.0, 1.00390625, 1.01171875, -0.0, np.inf, -np.inf, np.nan, 3.4e38, 1e-40], np.float32)
    raw = b"".join(encoded(of_floats(values), "BF16"))
    back = (np.frombuffer(raw, np.uint16).astype(np.uint32) << 16).view(np.float32)
    assert back[:3].tolist() == [1.0, 1.0, 1.015625]  # two ties: down to even, up to even
    assert np.signbit(back[3])
    assert back[4:6].tolist() == [np.inf, -np.inf]
    assert np.isnan(back[6])
    assert np.isinf(back[7])  # beyond the largest
    assert abs(back[8] - 1e-40) < 1e-41


def test_shards_give_the_same_file(tmp_path: Path) -> None:
    one = b"".join(plan_conversion(folders.llama(tmp_path / "m")).chunks())
    folder = folders.llama(tmp_path / "sharded" / "m")
    (folder / "model.safetensors").unlink()
    tensors = list(folders.llama_tensors().items())
    places: dict[str, str] = {}
    for number, part in enumerate((tensors[:5], tensors[5:])):
        name = f"model-{number}.safetensors"
        folders.write_safetensors(folder / name, dict(part))
        places |= {tensor: name for tensor, _ in part}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": places}))
    assert b"".join(plan_conversion(folder).chunks()) == one


def test_memory_does_not_grow_with_the_tensors() -> None:
    """A quarter of a gigabyte passes through in pieces, a transposed view too."""
    values = np.zeros((4, 2, 250_000, 32), np.float32)  # not touched, so not there
    weight = Weight((values.swapaxes(1, 2),), "F32", (2_000_000, 32))
    tracemalloc.start()
    size = sum(map(len, encoded(weight, "BF16")))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert size == values.nbytes // 2
    assert peak < 110 << 20


def without(name: str) -> Callable[[Path], None]:
    def spoil(folder: Path) -> None:
        tensors = folders.llama_tensors()
        del tensors[name]
        folders.write_safetensors(folder / "model.safetensors", tensors)

    return spoil


def with_tensor(name: str, values: Any) -> Callable[[Path], None]:
    return lambda folder: folders.write_safetensors(
        folder / "model.safetensors", folders.llama_tensors() | {name: values}
    )


def with_config(**values: Any) -> Callable[[Path], None]:
    return lambda folder: change(folder / "config.json", **values)


def only_pickle(folder: Path) -> None:
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")


def odd_pre_tokenizer(folder: Path) -> None:
    change(folder / "tokenizer.json", pre_tokenizer={"type": "Whitespace"})


REFUSED: dict[str, tuple[Callable[[Path], None], str]] = {
    "a pickle": (only_pickle, "pytorch_model.bin"),
    "no tokenizer": (lambda folder: (folder / "tokenizer.json").unlink(), "neither tokenizer.json nor tokenizer.model"),
    "own code": (with_config(architectures=["EvilForCausalLM"], auto_map={"AutoModel": "evil.Evil"}), "auto_map"),
    "own code for a known name": (with_config(auto_map={"AutoModelForCausalLM": "mine.LlamaForCausalLM"}), "auto_map"),
    "unknown architecture": (with_config(architectures=["GPT2LMHeadModel"]), "GPT2LMHeadModel"),
    "quantised": (with_config(quantization_config={"quant_method": "gptq", "bits": 4}), "gptq"),
    "a tensor too few": (without("model.layers.1.mlp.up_proj.weight"), "model.layers.1.mlp.up_proj.weight is missing"),
    "a tensor too many": (with_tensor("model.layers.0.self_attn.extra.weight", np.ones(3, np.float32)), "extra.weight"),
    "a wrong shape": (
        with_tensor("model.norm.weight", np.ones(31, np.float32)),
        "model.norm.weight: its shape is (31,)",
    ),
    "a type that is no weight": (with_tensor("model.norm.weight", np.ones(32, np.int64)), "I64 cannot be converted"),
    "another config": (with_config(intermediate_size=64), "by config.json it is (64, 32)"),
    "nonsense in the config": (with_config(num_hidden_layers="many"), "num_hidden_layers"),
    "unknown scaling": (with_config(rope_scaling={"rope_type": "spiral", "factor": 2.0}), "rope_type"),
    "an unknown way to cut text": (odd_pre_tokenizer, "how it cuts text is not known"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_converted_is_refused_before_anything_is_written(case: str, tmp_path: Path) -> None:
    spoil, expected = REFUSED[case]
    folder = folders.llama(tmp_path / "m")
    spoil(folder)
    with pytest.raises(BadModelFile) as caught:
        plan_conversion(folder)
    assert expected in caught.value.message
    assert str(folder) in caught.value.message
    assert caught.value.hint


def test_phi_names_its_own_code_that_transformers_has_since_built_in(tmp_path: Path) -> None:
    auto_map = {"AutoConfig": "configuration_phi3.Phi3Config", "AutoModelForCausalLM": "modeling_phi3.Phi3ForCausalLM"}
    folder = folders.llama(tmp_path / "m", architectures=["Phi3ForCausalLM"], auto_map=auto_map)
    with pytest.raises(BadModelFile, match="qkv_proj"):  # past auto_map, to the weights that are not Phi's
        plan_conversion(folder)


def test_too_large_for_f16_names_the_tensor_and_leaves_nothing(tmp_path: Path) -> None:
    folder = folders.llama(tmp_path / "m")
    with_tensor("model.layers.0.mlp.up_proj.weight", np.full((48, 32), 7e4, np.float32))(folder)
    target = tmp_path / "out.gguf"
    with pytest.raises(BadModelFile) as caught:
        write_file(plan_conversion(folder, "F16"), target, lambda _: None)
    assert "model.layers.0.mlp.up_proj.weight: holds 7e+04" in caught.value.message
    assert "bf16" in (caught.value.hint or "")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["m"]


def test_targets(tmp_path: Path) -> None:
    conversion = plan_conversion(folders.llama(tmp_path / "m"))
    (tmp_path / "there").write_text("mine")
    refused: tuple[tuple[Path, type[EdgeError]], ...] = (
        (tmp_path / "there", InvalidRequest),
        (tmp_path / "absent" / "x.gguf", InvalidRequest),
    )
    for target, kind in refused:
        with pytest.raises(kind):
            write_file(conversion, target, lambda _: None)
    assert (tmp_path / "there").read_text() == "mine"
    with pytest.raises(NotFound):
        plan_conversion(tmp_path / "nowhere")


def test_poolings(tmp_path: Path) -> None:
    for pooling, number in (("mean", 1), ("cls", 2), ("last", 3)):
        conversion = plan_conversion(folders.bert(tmp_path / pooling, pooling))
        assert conversion.metadata["bert.pooling_type"] == number
    with pytest.raises(BadModelFile, match="pooling is pooling_mode_max_tokens"):
        plan_conversion(folders.bert(tmp_path / "max", "max"))
    folder = folders.bert(tmp_path / "silent")
    (folder / "modules.json").unlink()
    assert "the mean is taken" in plan_conversion(folder).notes[0]


def test_steps_that_are_no_text_are_refused_by_name(tmp_path: Path) -> None:
    folder = folders.bert(tmp_path / "m")
    (folder / "modules.json").write_text("[]", encoding="utf-16")
    with pytest.raises(BadModelFile, match=r"modules.json: it is not text in UTF-8"):
        plan_conversion(folder)


def test_a_step_after_pooling_is_refused(tmp_path: Path) -> None:
    folder = folders.bert(tmp_path / "m")
    steps = json.loads((folder / "modules.json").read_text())
    steps.append({"type": "sentence_transformers.models.Dense", "path": "3_Dense"})
    (folder / "modules.json").write_text(json.dumps(steps))
    with pytest.raises(BadModelFile, match="Dense"):
        plan_conversion(folder)
