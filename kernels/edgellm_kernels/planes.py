"""Weight: a matrix as it was quantised, repacked from GGUF blocks into planes; or dense, as it lies in the file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from edgellm_kernels.blocks import block, block_bytes
from edgellm_kernels.repack.formats import FORMATS
from edgellm_kernels.repack.values import DENSE, values
from edgellm_kernels.staging import Staging

_STEP = 4 << 20  # bytes repacked at once: what is needed beside the result


@dataclass(frozen=True, eq=False)
class Weight:
    """A matrix [n, k], several of them [experts, n, k], or a vector [k].

    type    GGUF type name
    shape   outermost first
    planes  by name, each [*shape[:-1], …] (see `repack`); a dense weight's only plane is "dense"

    `weight[i]` and `weight[a:b]` are parts along the first axis, which share memory.
    """

    type: str
    shape: tuple[int, ...]
    planes: Mapping[str, Tensor]

    @classmethod
    def from_gguf(
        cls,
        data: Tensor,
        type: str,
        shape: tuple[int, ...],
        device: torch.device | str | None = None,
        staging: Staging | None = None,
    ) -> Weight:
        """A tensor of a file: `data` its bytes, uint8 and one-dimensional, and only read.

        Dense types stay views of `data` where device and alignment allow. With `staging` all goes to the device through
        it. Raises ValueError where sizes do not fit.
        """
        expected = block_bytes(type, shape)
        if data.dtype != torch.uint8 or data.dim() != 1 or data.numel() != expected:
            got = f"{data.dtype} {list(data.shape)}"
            raise ValueError(f"{type} of shape {shape} takes {expected} bytes as uint8 [{expected}], not {got}")
        device = torch.device(device) if device is not None else data.device
        if type in DENSE:
            dense = _dense(data, DENSE[type]).view(shape)
            return cls(type, shape, {"dense": dense.to(device) if staging is None else _sent(dense, device, staging)})
        return cls(type, shape, _repack(data, type, shape, device, staging))

    @classmethod
    def from_tensor(cls, tensor: Tensor) -> Weight:
        """A dense weight of float32, float16 or bfloat16; shares its memory."""
        for name, dtype in DENSE.items():
            if tensor.dtype == dtype:
                return cls(name, tuple(tensor.shape), {"dense": tensor.contiguous()})
        raise ValueError(f"a dense weight is float32, float16 or bfloat16, not {tensor.dtype}")

    @property
    def n(self) -> int:
        """Rows of the matrix: outputs."""
        return self.shape[-2]

    @property
    def k(self) -> int:
        """Columns of the matrix: inputs."""
        return self.shape[-1]

    @property
    def nbytes(self) -> int:
        return sum(plane.nbytes for plane in self.planes.values())

    @property
    def device(self) -> torch.device:
        return next(iter(self.planes.values())).device

    def __getitem__(self, part: int | slice) -> Weight:
        if len(self.shape) < (2 if isinstance(part, slice) else 3):
            raise IndexError(f"a weight of shape {self.shape} has no such parts")
        planes = {name: plane[part] for name, plane in self.planes.items()}
        if isinstance(part, int):
            return Weight(self.type, self.shape[1:], planes)
        return Weight(self.type, (len(range(self.shape[0])[part]), *self.shape[1:]), planes)

    def take(self, rows: Tensor) -> Weight:
        """The rows of a matrix [n, k] that int64 `rows` name, as a weight of its own."""
        planes = {name: plane.index_select(0, rows) for name, plane in self.planes.items()}
        return Weight(self.type, (rows.numel(), self.k), planes)

    def dense(self, out: Tensor | None = None) -> Tensor:
        """All values, float32 of `shape`, as ggml computes them to the last bit; in `out` if given and not float32."""
        return values(self.type, self.planes, out)


def _dense(data: Tensor, dtype: torch.dtype) -> Tensor:
    """The bytes as `dtype`; copied where they do not lie at a multiple of its size."""
    aligned = data.storage_offset() % dtype.itemsize == 0 and data.is_contiguous()
    return (data if aligned else data.clone()).view(dtype)


def _sent(source: Tensor, device: torch.device, staging: Staging) -> Tensor:
    target = torch.empty(source.shape, dtype=source.dtype, device=device)
    staging.copy(source, target)
    return target


def _repack(
    data: Tensor, kind: str, shape: tuple[int, ...], device: torch.device, staging: Staging | None
) -> dict[str, Tensor]:
    """Planes, made some rows at a time and moved to `device` as they come."""
    size = block(kind)
    blocks = shape[-1] // size.elements
    raw = data.view(-1, blocks, size.nbytes)
    rows = raw.shape[0]
    step = max(1, _STEP // (blocks * size.nbytes))
    planes: dict[str, Tensor] = {}
    for start in range(0, rows, step):
        for name, part in FORMATS[kind].repack(raw[start : start + step]).items():
            if name not in planes:
                planes[name] = torch.empty((rows, part.shape[1]), dtype=part.dtype, device=device)
            target = planes[name][start : start + step]
            if staging is None:
                target.copy_(part)
            else:
                staging.copy(part, target)
    return {name: plane.view(*shape[:-1], plane.shape[1]) for name, plane in planes.items()}
