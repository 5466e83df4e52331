"""Models larger than memory: how fast this disk gives up their weights, and how many each token needs."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any, Final

import msgspec

from edgellm.contracts.engine import ModelFile
from edgellm.platform import forget_cached

SAMPLE: Final = 64 << 20  # bytes read to learn the rate
_CHUNK: Final = 1 << 20
_SPOTS: Final = 8  # the sample is taken from so many places


class DiskSpeed(msgspec.Struct, frozen=True):
    """What running from disk would be like.

    rate      bytes a second, measured
    touched   bytes of weights that one token needs, of all that there are
    slowest   tokens a second if every byte comes from disk; `fastest`, if all that fits in memory stays there
    """

    rate: float
    touched: int
    slowest: float
    fastest: float


def disk_speed(model: ModelFile, beyond: int) -> DiskSpeed | None:
    """The speed of `model` with `beyond` bytes of its weights not in memory; None where the disk cannot be measured."""
    rate = read_rate(model.path)
    touched = touched_per_token(model)
    if rate is None or touched <= 0:
        return None
    weights = sum(tensor.nbytes for tensor in model.tensors)
    missing = max(1, touched * min(beyond, weights) // weights)
    return DiskSpeed(rate, touched, rate / touched, rate / missing)


def touched_per_token(model: ModelFile) -> int:
    """Bytes of weights read for one token: of experts those in use, of an embedding that is not the output one row."""
    names = {tensor.name for tensor in model.tensors}
    used, experts = (_number(model, key) for key in ("expert_used_count", "expert_count"))
    total = 0
    for tensor in model.tensors:
        if tensor.name in ("token_embd.weight", "per_layer_token_embd.weight") and (
            "output.weight" in names or tensor.name != "token_embd.weight"
        ):
            total += tensor.nbytes // max(1, tensor.shape[-1])
        elif "_exps." in tensor.name and 0 < used < experts:
            total += tensor.nbytes * used // experts
        else:
            total += tensor.nbytes
    return total


def read_rate(path: Path, sample: int = SAMPLE) -> float | None:
    """Bytes a second that reading `path` gives when the system holds no copy of it; None where it cannot be told."""
    try:
        with path.open("rb", buffering=0) as file:
            size = os.fstat(file.fileno()).st_size
            part = max(_CHUNK, sample // _SPOTS // _CHUNK * _CHUNK)
            spots = sorted({size * spot // _SPOTS // _CHUNK * _CHUNK for spot in range(_SPOTS)})
            if not all(forget_cached(file.fileno(), spot, part) for spot in spots):
                return None
            start, done = time.perf_counter(), 0
            for spot in spots:
                file.seek(spot)
                for _ in range(part // _CHUNK):
                    done += len(file.read(_CHUNK))
            return done / max(1e-9, time.perf_counter() - start) if done else None
    except OSError:
        return None


def _number(model: ModelFile, key: str) -> int:
    value: Any = model.metadata.get(f"{model.architecture}.{key}")
    return value if type(value) is int and value > 0 else 0
