"""Whether matrix products here give a row the same bits at every place: measured, shape by shape."""

from __future__ import annotations

from collections.abc import Iterable

import torch

from edgellm_kernels.planes import Weight
from edgellm_kernels.reference import tiles


def rows_exact(weights: Iterable[Weight]) -> bool:
    """Whether all products with these weights are made in whole tiles. Where not, `linear` multiplies row by row:

    as exact, but slower. Some milliseconds for each shape that was not measured yet, with the present threads.
    """
    threads = torch.get_num_threads()
    shapes = {
        (end - start, weight.k, str(weight.device))
        for weight in weights
        if len(weight.shape) > 1
        for start, end in tiles.spans(weight.n, weight.k)
    }
    return all(tiles.place_free(*shape, threads) for shape in sorted(shapes))
