"""Embeddings of the torch engine on quantised files against llama.cpp on the same numbers in F32."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import pytest
import torch_zoo
from convert import llama
from edgellm_torch.plugin import plugin
from torch_encoders import ENCODERS, SIZE
from torch_zoo import Dims, Pair

from edgellm.contracts.embedding import EmbeddingRunner
from edgellm.contracts.engine import Placement
from edgellm.formats.gguf import read_model

ERROR = 2e-3
ROOM = Placement(context=512, capacity=512, max_sequences=8, batch_tokens=512, threads=1, threads_batch=1)
KINDS = ("F32", "F16", "Q4_0", "Q8_0", "Q5_K", "IQ4_XS")
DECODERS = ("llama", "qwen2", "qwen3", "gemma2", "gemma3", "qwen3moe", "deepseek2")
POOLINGS = {"mean": 1, "first": 2, "last": 3}
_NUMBERS = np.random.default_rng(5)
TEXTS = [_NUMBERS.integers(3, SIZE, length).tolist() for length in (1, 2, 17, 60, 300)]


def load(path: Path, room: Placement = ROOM) -> EmbeddingRunner:
    return plugin.load_embedder(read_model(path), room, lambda _done: None)


def errors(ours: npt.NDArray[np.float32], truth: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    """Of each text's vector, relative to its length."""
    found: npt.NDArray[np.float32] = np.linalg.norm(ours - truth, axis=1) / np.linalg.norm(truth, axis=1)
    return found


def check(pair: Pair, texts: list[list[int]] = TEXTS) -> None:
    runner = load(pair.quantised)
    together = runner.embed(texts)
    truth = llama.embeddings(pair.exact, texts)
    assert together.shape == truth.shape == (len(texts), runner.info.dimensions)
    assert errors(together, truth).max() <= ERROR
    for text, vector in zip(texts, together, strict=True):
        assert (runner.embed([text])[0] == vector).all()  # to the last bit
    others = [errors(np.delete(truth, n, 0), truth[n : n + 1]).min() for n in range(len(texts))]
    assert min(others) > 10 * ERROR  # or another text's vector would do
    runner.close()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("family", ENCODERS)
def test_encoders(family: str, kind: str, tmp_path: Path) -> None:
    check(torch_zoo.write(tmp_path, family, kind, families=ENCODERS))


@pytest.mark.parametrize("how", POOLINGS)
def test_every_pooling_of_an_encoder(how: str, tmp_path: Path) -> None:
    check(torch_zoo.write(tmp_path, "bert", "Q8_0", keys={"pooling_type": POOLINGS[how]}, families=ENCODERS))


@pytest.mark.parametrize("how", POOLINGS)
@pytest.mark.parametrize("family", DECODERS)
def test_decoders(family: str, how: str, tmp_path: Path) -> None:
    texts = [text[:100] for text in TEXTS]
    check(torch_zoo.write(tmp_path, family, "Q8_0", keys={"pooling_type": POOLINGS[how]}), texts)


@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3", "qwen3moe"])
def test_decoders_that_look_both_ways(family: str, tmp_path: Path) -> None:
    texts = [text[:100] for text in TEXTS]
    keys = {"pooling_type": 1, "attention.causal": False}
    check(torch_zoo.write(tmp_path, family, "Q8_0", keys=keys), texts)


def test_long_texts_of_an_encoder(tmp_path: Path) -> None:
    """Some queries at a time."""
    pair = torch_zoo.write(tmp_path, "nomic-bert", "Q4_0", dims=Dims(context=2048), families=ENCODERS)
    text = np.random.default_rng(6).integers(3, SIZE, 1500).tolist()
    runner = load(pair.quantised, msgspec.structs.replace(ROOM, context=2048, capacity=2048, batch_tokens=2048))
    assert errors(runner.embed([text]), llama.embeddings(pair.exact, [text])).max() <= ERROR


def test_an_encoder_takes_no_more_than_it_has_positions(tmp_path: Path) -> None:
    pair = torch_zoo.write(tmp_path, "bert", "Q8_0", dims=Dims(context=64), families=ENCODERS)
    runner = load(pair.quantised)
    assert runner.info.context == 64
    assert runner.embed([[5] * 64]).shape == (1, 256)
    with pytest.raises(ValueError, match="1 to 64 tokens"):
        runner.embed([[5] * 65])


def test_a_decoder_remembers_nothing(tmp_path: Path) -> None:
    path = torch_zoo.write(tmp_path, "gemma3", "Q8_0", keys={"pooling_type": 3}).quantised
    runner: Any = load(path)
    fresh = runner.embed(TEXTS[1:3])
    runner.embed(TEXTS[3:])
    assert (runner.embed(TEXTS[1:3]) == fresh).all()
