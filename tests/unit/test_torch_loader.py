"""Weights on their way from the file to where they are computed with."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
import torch_zoo
from edgellm_kernels.blocks import BLOCKS
from edgellm_kernels.planes import Weight
from edgellm_kernels.staging import Staging
from edgellm_torch import loader
from edgellm_torch.architectures import decoder

from edgellm.formats.gguf import read_model


@pytest.mark.parametrize("kind", ["Q4_K", "Q5_0", "BF16", "F32"])
@pytest.mark.parametrize("size", [1000, 1 << 20])
def test_weights_go_through_staging_unchanged(kind: str, size: int, tmp_path: Path) -> None:
    model = read_model(torch_zoo.write(tmp_path, "llama", kind).quantised)
    parts, made = decoder(model), list[Staging]()

    def staging() -> Staging:
        made.append(Staging(size, locked=False))
        return made[-1]

    plain = loader.load(model, parts, 2, lambda _done: None)
    staged = loader.load(model, parts, 2, lambda _done: None, "cpu", staging)
    assert 1 <= len(made) <= 2, "one for each thread"
    assert staged.nbytes == plain.nbytes
    for name, weight in plain.matrices.items():
        for plane, tensor in weight.planes.items():
            assert torch.equal(staged.matrices[name].planes[plane], tensor)
    assert all(torch.equal(staged.vectors[name], vector) for name, vector in plain.vectors.items())


def test_staging_takes_what_fits_together() -> None:
    with pytest.raises(ValueError, match=r"float32 \(3,\) is no torch.float32 \(4,\)"):
        Staging(16, locked=False).copy(torch.zeros(3), torch.zeros(4))


def test_only_some_parts_of_a_model(tmp_path: Path) -> None:
    model = read_model(torch_zoo.write(tmp_path, "llama", "Q8_0").quantised)
    parts = decoder(model)
    first = loader.load(model, (parts.embedding, parts.layers[0]), 1, lambda _done: None)
    second = loader.load(model, (parts.layers[1], parts.norm, parts.output), 1, lambda _done: None)
    assert not first.matrices.keys() & second.matrices.keys()
    assert first.nbytes + second.nbytes == loader.load(model, parts, 1, lambda _done: None).nbytes


def test_once_closed_nothing_more_is_read() -> None:
    begun, go_on = list[str](), threading.Event()

    def read(name: str) -> tuple[str, torch.Tensor]:
        begun.append(name)
        if name == "b":
            go_on.wait(60)
        return name, torch.zeros(1)

    with ThreadPoolExecutor(1) as workers:
        made = loader._each(workers, read, list("abcdef"))
        assert next(made)[0] == "a"
        made.close()
        go_on.set()
    assert begun in (["a"], ["a", "b"])


def test_whoever_gives_up_while_loading_hears_of_his_own_error(tmp_path: Path) -> None:
    model = read_model(torch_zoo.write(tmp_path, "llama", "Q8_0").quantised)

    def give_up(_done: float) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        loader.load(model, decoder(model), 1, give_up)


def test_every_type_has_a_way() -> None:
    """A dense type is copied as it is, others plane by plane."""
    for kind, block in BLOCKS.items():
        data = torch.randint(0, 120, (block.nbytes * 6,), dtype=torch.uint8)
        shape = (3, block.elements * 2)
        plain, staged = (Weight.from_gguf(data, kind, shape, None, way) for way in (None, Staging(7, locked=False)))
        for plane, tensor in plain.planes.items():
            assert torch.equal(staged.planes[plane].view(torch.uint8), tensor.view(torch.uint8)), kind
