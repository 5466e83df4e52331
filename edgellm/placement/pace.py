"""How fast a model will about answer, before it is here: the bytes a token reads over memory's rate.

Decoding one sequence reads every active weight once per token and does little else, so memory's rate bounds it. A
class, not a promise: threads, other programs and long contexts all take their share.
"""

from __future__ import annotations

import threading
import time
from typing import Final

from edgellm.contracts.engine import ModelFile

_SAMPLE: Final = 64 << 20  # bytes per thread; larger than caches
_PASSES: Final = 2
_SHARE: Final = 0.7  # of the measured rate that engines reach
_MOST_THREADS: Final = 8  # more do not make memory faster
_CLASSES: Final = ((20.0, "fast"), (6.0, "about as fast as one reads"), (1.5, "slow"), (0.0, "very slow"))


def active_bytes(model: ModelFile) -> int:
    """Bytes of weights that one token reads: of experts those that are used, of the embedding table next to nothing."""
    metadata, architecture = model.metadata, model.architecture
    count, used = (metadata.get(f"{architecture}.expert_{name}") for name in ("count", "used_count"))
    experts = type(count) is int and type(used) is int and 0 < used <= count
    tied = not any(tensor.name == "output.weight" for tensor in model.tensors)
    total = 0
    for tensor in model.tensors:
        if tensor.name == "token_embd.weight" and not tied:
            continue
        part = tensor.nbytes
        if experts and "_exps." in tensor.name:
            part = part * used // count  # type: ignore[operator]  # both are numbers here
        total += part
    return total


def tokens_per_second(model: ModelFile, rate: float) -> float:
    """About what decoding one sequence reaches when memory gives `rate` bytes per second."""
    return rate * _SHARE / max(1, active_bytes(model))


def pace(speed: float) -> str:
    """A speed in tokens per second in words."""
    name = next(name for least, name in _CLASSES if speed >= least)
    figure = f"{speed:.0f}" if speed >= 10 else f"{speed:.1f}"
    return f"{name}, some {figure} tok/s on this CPU"


def memory_rate(threads: int) -> float:
    """Bytes per second that this many threads read from memory, measured in about a tenth of a second."""
    import numpy as np

    threads = max(1, min(threads, _MOST_THREADS))
    blocks = [np.ones(_SAMPLE // 8, dtype=np.uint64) for _ in range(threads)]
    best = 0.0
    for _ in range(_PASSES):
        workers = [threading.Thread(target=block.sum) for block in blocks]
        began = time.perf_counter()
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        best = max(best, threads * _SAMPLE / (time.perf_counter() - began))
    return best
