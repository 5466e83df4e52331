"""The engines that the contract's tests run on. Another joins by its name in ENGINES and a branch in `open_engine`."""

from __future__ import annotations

from pathlib import Path

import msgspec
import numpy as np
import torch_zoo
from fake_runner import FakeBehaviour, FakePlugin

from edgellm.contracts.engine import EnginePlugin, ModelFile, Placement, TensorInfo, Tokenizer
from edgellm.contracts.runner import TokenRunner
from edgellm.formats.gguf import read_model

PLACEMENT = Placement(
    context=1024,
    capacity=1280,
    max_sequences=8,
    batch_tokens=256,
    threads=2,
    threads_batch=2,
)
TINY = msgspec.structs.replace(PLACEMENT, context=256, capacity=256, max_sequences=4, batch_tokens=128)


class Engine:
    """One engine with one model.

    exact       logits of a row do not depend, to the last bit, on what else is in the step
    """

    def __init__(self, name: str, plugin: EnginePlugin, model: ModelFile, *, exact: bool = True) -> None:
        self.name = name
        self.exact = exact
        self.plugin = plugin
        self.model = model
        self.tokenizer: Tokenizer = plugin.tokenizer(model)

    def load(self, placement: Placement) -> TokenRunner:
        if self.name.startswith("torch"):
            # Its threads wait for each other at every operation: on a busy machine one is faster than two.
            placement = msgspec.structs.replace(placement, threads=1, threads_batch=1)
        runner = self.plugin.load(self.model, placement, lambda _done: None)
        if self.name.endswith("-ahead"):
            two_in_flight(runner)
        return runner


def two_in_flight(runner: TokenRunner) -> None:
    """As on a device that works by itself; on a CPU a step has ended when it has been submitted."""
    runner._info = msgspec.structs.replace(runner.info, pipeline_depth=2)  # type: ignore[attr-defined]


# The torch engine's reference kernels are slow. Real models are cut to some layers, Gemma to five with windows and one
# that sees everything; others are tiny, with random weights.
LAYERS = {"torch-smollm2": 2, "torch-gemma3": 6}
TINY_MODELS = {
    "torch-tiny-gemma3": ("gemma3", "Q4_K"),
    "torch-tiny-deepseek2": ("deepseek2", "Q8_0"),
    "torch-tiny-ahead": ("gemma3", "Q4_K"),
}
ENGINES = ("fake", "fake-windowed", "fake-ahead", "llamacpp-smollm2", "llamacpp-gemma3", "torch-smollm2", *TINY_MODELS)
SLOW_ENGINES = ("torch-gemma3",)


def tiny_model(name: str, folder: Path) -> Path:
    """One of TINY_MODELS."""
    family, kind = TINY_MODELS[name]
    if family != "gemma3":
        return torch_zoo.write(folder, family, kind).quantised
    # With an output of its own: one that it shares with a random embedding says every token again.
    output = np.random.default_rng(4).standard_normal((275, 256), np.float32) / np.float32(12)
    return torch_zoo.write(folder, family, kind, vectors={"output.weight": output}).quantised


def open_engine(name: str, path: Path) -> Engine:
    """`path` is a model for the engine; the fake makes its own in that folder."""
    if name.startswith("fake"):
        plugin = FakePlugin(FakeBehaviour(window=32 if name == "fake-windowed" else 0))
        return Engine(name, plugin, fake_model(path))
    if name.startswith("torch"):
        from edgellm_torch.plugin import TorchPlugin

        return Engine(name, TorchPlugin(), read_model(path))
    from edgellm_llamacpp.plugin import LlamaCppPlugin

    # llama.cpp multiplies Q4_1 weights row by row; for Q4_K and others it has kernels for several rows.
    return Engine(name, LlamaCppPlugin(), read_model(path), exact=name == "llamacpp-smollm2")


def fake_model(folder: Path) -> ModelFile:
    path = folder / "fake.gguf"
    path.write_bytes(b"GGUF and nothing else")
    tensor = TensorInfo(name="token_embd.weight", type="F32", shape=(4, 260), nbytes=4160, offset=32)
    return ModelFile(path=path, size=21, architecture="fake", metadata={}, tensors=(tensor,))
