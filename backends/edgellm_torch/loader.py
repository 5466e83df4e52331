"""The tensors of a model file: mapped, checked against the header, and repacked by several threads at once."""

from __future__ import annotations

import mmap
import threading
import warnings
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import torch
from edgellm_kernels.blocks import BLOCKS
from edgellm_kernels.planes import Weight
from edgellm_kernels.staging import Staging
from torch import Tensor

from edgellm.contracts.engine import ModelFile, TensorInfo
from edgellm.errors import LoadFailed, short_of_memory
from edgellm_torch.config import linears, tensors

_AGAIN = "the file is damaged or was changed; pull the model again"


class Weights:
    """What a decoder's parts name: matrices as they are stored, vectors as float32."""

    def __init__(self, matrices: dict[str, Weight], vectors: dict[str, Tensor]) -> None:
        self.matrices = matrices
        self.vectors = vectors

    def vector(self, name: str) -> Tensor | None:
        """None for the name of nothing: a bias that is not there."""
        return self.vectors[name] if name else None

    @property
    def nbytes(self) -> int:
        held = sum(weight.nbytes for weight in self.matrices.values())
        return held + 4 * sum(int(vector.numel()) for vector in self.vectors.values())


def load(
    model: ModelFile,
    part: Any,
    threads: int,
    progress: Callable[[float], None],
    device: str = "cpu",
    staging: Callable[[], Staging] | None = None,
) -> Weights:
    """Read every tensor that `part`, a model or some parts of one, names. `staging` makes a thread's way to `device`.

    `progress` is called on this thread, with up to 1, and may raise: then nothing more is read. Raises LoadFailed where
    a file is not the one that `model` describes.
    """
    files = [MappedFile(path) for path in (model.path, *model.more)]
    known = {tensor.name: tensor for tensor in model.tensors}
    for tensor in model.tensors:
        _require_inside(tensor, files, model)
    matrices, wanted = {linear.weight for linear in linears(part)}, tensors(part)
    total = sum(known[name].nbytes for name in wanted)
    local = threading.local()

    def read(name: str) -> tuple[str, Weight | Tensor]:
        tensor = known[name]
        file = files[tensor.file]
        if staging is not None and not hasattr(local, "staging"):
            local.staging = staging()
        way = getattr(local, "staging", None)
        weight = Weight.from_gguf(file.bytes(tensor), tensor.type, tuple(reversed(tensor.shape)), device, way)
        if name in matrices and BLOCKS[tensor.type].dense and way is None:
            return name, weight  # a view of the file, where that is possible
        made = weight if name in matrices else weight.dense().clone()
        file.forget(tensor)
        return name, made

    found: dict[str, Weight | Tensor] = {}
    done = 0
    in_order = sorted(wanted, key=lambda name: known[name].offset)
    with (
        ThreadPoolExecutor(max(1, threads), thread_name_prefix="weights") as workers,
        closing(_each(workers, read, in_order)) as made,
    ):
        for name, value in made:
            found[name] = value
            done += known[name].nbytes
            progress(min(1.0, done / total))
    return Weights(
        {name: value for name, value in found.items() if isinstance(value, Weight)},
        {name: value for name, value in found.items() if isinstance(value, Tensor)},
    )


def _each(
    workers: ThreadPoolExecutor, read: Callable[[str], tuple[str, Weight | Tensor]], names: Sequence[str]
) -> Generator[tuple[str, Weight | Tensor]]:
    """What `read` makes of each name, in order. Once it is closed, nothing more is begun."""
    waiting = [workers.submit(read, name) for name in names]
    try:
        for name, future in zip(names, waiting, strict=True):
            try:
                yield future.result()
            except ValueError as error:
                raise LoadFailed(f"tensor {name} cannot be read: {error}", hint=_AGAIN) from error
    finally:
        for future in waiting:
            future.cancel()


class MappedFile:
    """A whole file in memory: pages come from the disk when they are read, and go when they are forgotten."""

    def __init__(self, path: Path) -> None:
        """Raises LoadFailed for a file that is not there, or no GGUF; MemoryError where there is no room to map it."""
        try:
            with path.open("rb") as file:
                if file.read(4) != b"GGUF":
                    raise LoadFailed(f"{path.name} is not a GGUF file", hint=_AGAIN)
                self._map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except OSError as error:
            if short_of_memory(error):
                raise MemoryError(f"{path.name} cannot be mapped: {error.strerror}") from error
            raise LoadFailed(f"cannot open {path.name}: {error.strerror}", hint="pull the model again") from error
        with warnings.catch_warnings():  # that it cannot be written to: nobody does, and a copy would count as memory
            warnings.simplefilter("ignore", UserWarning)
            self._all = torch.frombuffer(self._map, dtype=torch.uint8)

    @property
    def size(self) -> int:
        return len(self._map)

    def bytes(self, tensor: TensorInfo) -> Tensor:
        """A view of a tensor's bytes, uint8 [nbytes]."""
        return self._all[tensor.offset : tensor.offset + tensor.nbytes]

    def forget(self, tensor: TensorInfo) -> None:
        """Its pages need not stay in this process's memory; whoever reads them again gets them from the file."""
        if hasattr(self._map, "madvise"):
            start = -(-tensor.offset // mmap.PAGESIZE) * mmap.PAGESIZE
            end = (tensor.offset + tensor.nbytes) // mmap.PAGESIZE * mmap.PAGESIZE
            if end > start:
                self._map.madvise(mmap.MADV_DONTNEED, start, end - start)


def _require_inside(tensor: TensorInfo, files: Sequence[MappedFile], model: ModelFile) -> None:
    """Beyond a map's end lies a signal that kills the process."""
    paths = (model.path, *model.more)
    if tensor.file >= len(files):
        raise LoadFailed(f"{model.path.name} is split, and part {tensor.file + 1} is not there", hint=_AGAIN)
    size = files[tensor.file].size
    if tensor.offset + tensor.nbytes > size:
        name = paths[tensor.file].name
        raise LoadFailed(f"{name} ends at byte {size}, before tensor {tensor.name} does", hint=_AGAIN)
