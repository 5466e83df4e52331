"""Predicted memory against llama.cpp's own figures, for models of many architectures, and against whole processes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest
import torch_zoo
import zoo
from contract.engines import TINY
from edgellm_llamacpp.costs import EMBEDDER_MERGE, MIB, cost_model
from edgellm_llamacpp.plugin import LlamaCppPlugin
from edgellm_llamacpp.repacking import repacked
from edgellm_torch.plugin import TorchPlugin
from shortened import shortened
from torch_encoders import ENCODERS
from torch_zoo import FAMILIES
from zoo import Size

from edgellm.contracts.runner import Row
from edgellm.errors import InvalidRequest, LoadFailed
from edgellm.formats.gguf import read_model
from edgellm.formats.gguf_types import TENSOR_TYPES
from edgellm.formats.splits import join
from edgellm.library.convert.convert import plan_conversion

REPORTER = Path(__file__).parent.parent / "llamacpp_memory.py"
STEP = Path(__file__).parent.parent / "torch_memory.py"
MEASURE = Path(__file__).parent.parent.parent / "benchmarks" / "memory.py"
LARGE = Size(
    layers=3, width=2048, ffn=4096, heads=16, kv_heads=4, head=128, vocabulary=64_000, experts=16, used=4, weight=2
)


def reported(
    path: Path, capacity: int, sequences: int, batch: int, kv_type: str = "f16", load: str = "read"
) -> dict[str, float]:
    """What llama.cpp says it allocated, MiB: kv, scratch, weights."""
    numbers = [str(number) for number in (capacity, sequences, batch)]
    command = [sys.executable, str(REPORTER), str(path), *numbers, kv_type, load]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stderr[-2000:] + done.stdout[-2000:]
    found: dict[str, float] = json.loads(done.stdout)
    return found


@pytest.mark.parametrize("architecture", zoo.ZOO)
def test_kv_is_exact_for_every_kind_of_layer(architecture: str, tmp_path: Path) -> None:
    path = zoo.write(tmp_path, architecture)
    told = reported(path, 4000, 4, 512)
    needs = cost_model(read_model(path), "f16").needs(4000, 4, 512)
    assert needs.kv_total / MIB == pytest.approx(told["kv"], abs=0.02)
    assert needs.weights / MIB == pytest.approx(told["weights"], abs=0.02)


@pytest.mark.slow
@pytest.mark.parametrize("architecture", zoo.ZOO)
def test_scratch_is_close_for_every_architecture(architecture: str, tmp_path: Path) -> None:
    path = zoo.write(tmp_path, architecture, LARGE)
    for capacity, sequences, batch in ((4096, 4, 512), (16_384, 32, 128)):
        told = reported(path, capacity, sequences, batch, load="map")
        needs = cost_model(read_model(path), "f16").needs(capacity, sequences, batch)
        assert needs.kv_total / MIB == pytest.approx(told["kv"], abs=0.02)
        assert 0.75 < needs.activations / MIB / told["scratch"] < 1.25


@pytest.mark.parametrize("kv_type", LlamaCppPlugin().kv_types)
def test_every_kv_type_is_exact_and_loads(kv_type: str, tmp_path: Path) -> None:
    path = zoo.write(tmp_path, "gemma3")
    told = reported(path, 4096, 4, 512, kv_type)
    needs = cost_model(read_model(path), kv_type).needs(4096, 4, 512)
    assert needs.kv_total / MIB == pytest.approx(told["kv"], abs=0.02)


def test_types_that_do_not_fit_the_heads_are_refused(tmp_path: Path) -> None:
    model = read_model(zoo.write(tmp_path, "llama", Size(head=40)))
    assert cost_model(model, "f16").kv
    with pytest.raises(InvalidRequest, match="heads have 40 numbers") as caught:
        cost_model(model, "q8_0")
    assert caught.value.param == "kv_type"
    with pytest.raises(InvalidRequest, match="no KV type q9"):
        cost_model(model, "q9")
    without = read_model(zoo.write(tmp_path, "mamba", Size(head=40)))
    assert cost_model(without, "q8_0").kv[0].kind == "recurrent"


@pytest.mark.parametrize(
    ("flags", "kinds"),
    [
        ({"avx2"}, {"Q4_0", "Q4_K", "IQ4_NL", "MXFP4"}),
        ({"avx2", "avx512f"}, {"Q4_0", "Q4_K", "IQ4_NL", "MXFP4", "Q2_K"}),
        ({"avx2", "amx_int8"}, {"Q4_0", "Q4_1", "Q8_0", "Q4_K", "Q5_K", "Q6_K", "IQ4_XS", "IQ4_NL", "MXFP4"}),
        ({"asimddp"}, {"Q4_0", "Q4_K", "Q5_K", "Q6_K", "Q8_0", "IQ4_NL", "MXFP4"}),
        (set(), set()),
    ],
)
def test_what_a_cpu_rearranges(flags: set[str], kinds: set[str]) -> None:
    def names(*, own: bool) -> set[str]:
        return {kind.name for kind in TENSOR_TYPES.values() if repacked(kind.name, (256, 512), flags, own)}

    assert names(own=False) == kinds
    assert names(own=True) == kinds | ({"Q4_0", "Q4_1", "Q8_0", "Q4_K", "Q5_K", "Q6_K"} if "avx2" in flags else set())
    assert not repacked("Q4_0", (256, 513), flags, own=True)
    assert not repacked("Q4_1", (256, 24), {"avx2"}, own=True)


def test_a_shared_embedding_counts_twice_where_the_output_is_rearranged(tmp_path: Path) -> None:
    size = Size(weight=2, vocabulary=4096)
    path = zoo.write(tmp_path, "qwen3", size)
    told = reported(path, 256, 1, 64)
    needs = cost_model(read_model(path), "f16").needs(256, 1, 64)
    assert needs.weights / MIB == pytest.approx(told["weights"], rel=0.01)


def test_a_model_in_several_files_loads_whatever_their_names(tmp_path: Path) -> None:
    parts = [read_model(path) for path in zoo.write_parts(tmp_path, "qwen2", 3)]
    whole = zoo.write(tmp_path, "qwen2")
    model = join(parts)
    assert cost_model(model, "f16") == cost_model(read_model(whole), "f16")
    runner = LlamaCppPlugin().load(model, TINY, lambda _done: None)
    runner.collect(runner.submit([Row(0, 0, [1, 2, 3])]))
    runner.close()
    with pytest.raises(LoadFailed):
        LlamaCppPlugin().load(msgspec.structs.replace(model, more=model.more[:1]), TINY, lambda _done: None)


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("which", ["smollm2", "gemma3"])
@pytest.mark.parametrize(
    ("engine", "small", "contexts", "prompt"),
    [("llamacpp", "q8_0", ("2048", "4096", "8192"), "64"), ("torch", "int8", ("2048", "8192"), "600")],
    ids=["llamacpp", "torch"],
)
def test_a_whole_worker_takes_what_was_planned(
    which: str, engine: str, small: str, contexts: tuple[str, ...], prompt: str, request: pytest.FixtureRequest
) -> None:
    """Two or three contexts, two KV types, a process of its own for each: within a tenth."""
    path: Path = request.getfixturevalue(which)
    command = [sys.executable, str(MEASURE), str(path), "--json", "--engine", engine, "--prompt", prompt]
    command += ["--contexts", *contexts]
    done = subprocess.run(command, capture_output=True, text=True, timeout=3500, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    rows = json.loads(done.stdout)
    assert {(row["context"], row["kv_type"]) for row in rows} == {
        (int(context), kv_type) for context in contexts for kv_type in ("f16", small)
    }
    for row in rows:
        assert row["predicted"] == pytest.approx(row["taken"], rel=0.1), row


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="the system does not tell the most that was taken")
@pytest.mark.parametrize("engine", ["llamacpp", "torch"])
@pytest.mark.parametrize("family", ["all-minilm", "nomic-bert", "gemma-embedding", "qwen3"])
def test_a_whole_embedder_takes_what_was_planned(
    family: str, engine: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """Short and long texts, within a tenth of the most that was taken."""
    if family == "all-minilm":
        folder: Path = request.getfixturevalue("minilm")
        path = tmp_path / "minilm.gguf"
        with path.open("wb") as out:
            out.writelines(plan_conversion(folder).chunks())
    else:
        dims = torch_zoo.Dims(layers=12, width=768, ffn=3072, heads=12, context=2048)
        keys = {"pooling_type": 1}
        path = torch_zoo.write(tmp_path, family, "Q4_0", keys=keys, dims=dims, families=ENCODERS | FAMILIES).quantised
    command = [sys.executable, str(MEASURE), str(path), "--json", "--engine", engine]
    done = subprocess.run(command, capture_output=True, text=True, timeout=3500, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    for row in json.loads(done.stdout):
        assert row["predicted"] == pytest.approx(row["taken"], rel=0.1), row


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="this system does not tell the most that was taken")
@pytest.mark.parametrize(
    ("which", "context", "batch", "kv_type"),
    [
        ("smollm2", 8192, 512, "f16"),
        ("smollm2 cut short", 8192, 4096, "int8"),
        ("gemma3", 32_768, 1024, "f16"),
        ("llama", 131_072, 1024, "f16"),
        ("deepseek2", 65_536, 512, "f16"),
    ],
)
def test_the_largest_step_of_the_torch_engine_takes_what_was_planned(
    which: str, context: int, batch: int, kv_type: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    """Long contexts and large steps; at its end, and most of it there at once: within a tenth.

    Layers are computed one after the other, and a step holds what the largest takes: with 4,096 tokens twelve are
    enough. They are still so many that what goes from layer to layer, were it kept by each, would be more than a tenth.
    """
    if which in FAMILIES:
        path = torch_zoo.write(tmp_path, which, "Q8_0", dims=torch_zoo.Dims(context=context)).quantised
    else:
        name, _, cut = which.partition(" ")
        whole: Path = request.getfixturevalue(name)
        path = shortened(whole, 12, tmp_path) if cut else whole
    command = [sys.executable, str(STEP), str(path), *map(str, (context, context, 32, batch)), kv_type]
    env = os.environ | {
        "PYTHONPATH": os.pathsep.join([str(MEASURE.parent), *filter(None, [os.environ.get("PYTHONPATH")])])
    }
    done = subprocess.run(command, capture_output=True, text=True, timeout=3500, check=False, env=env)
    assert done.returncode == 0, done.stderr[-2000:]
    needs = TorchPlugin().cost_model(read_model(path), kv_type).needs(context, 32, batch)
    assert needs.total == pytest.approx(int(done.stdout), rel=0.1), needs


def test_merges_count_for_embedders_too(tmp_path: Path) -> None:
    model = read_model(zoo.write(tmp_path, "qwen3", Size(vocabulary=4096)))

    def process(kind: str) -> int:
        of = msgspec.structs.replace(model, metadata=dict(model.metadata) | {"tokenizer.ggml.model": kind})
        return LlamaCppPlugin().embedding_cost(of, 512).process

    assert process("gpt2") - process("llama") == 4096 * EMBEDDER_MERGE
