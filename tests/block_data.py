"""Random blocks of every GGUF type: any codes, scales that are finite."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from edgellm_kernels.blocks import BLOCKS

Bytes = npt.NDArray[np.uint8]
HALVES = {  # where a block holds float16
    "F16": (0,),
    "Q4_0": (0,),
    "Q4_1": (0, 2),
    "Q5_0": (0,),
    "Q5_1": (0, 2),
    "Q8_0": (0,),
    "Q2_K": (80, 82),
    "Q3_K": (108,),
    "Q4_K": (0, 2),
    "Q5_K": (0, 2),
    "Q6_K": (208,),
    "IQ4_NL": (0,),
    "IQ4_XS": (0,),
}


def random_blocks(kind: str, rows: int, k: int, seed: int = 0) -> Bytes:
    """Any bytes, but for scales, which are finite. uint8 [rows, bytes of a row]."""
    size = BLOCKS[kind]
    rng = np.random.default_rng(seed)
    raw = rng.integers(0, 256, (rows * k // size.elements, size.nbytes), dtype=np.uint8)
    for at in HALVES.get(kind, ()):
        scales = np.clip(rng.standard_normal(len(raw)), -6, 6).astype(np.float16)
        raw[:, at : at + 2] = scales.view(np.uint8).reshape(-1, 2)
    if kind == "MXFP4":
        raw[:, 0] %= 250  # beyond, values overflow
    if kind == "BF16":
        raw[:, 1] &= 0x3F
    if kind == "F32":
        raw[:, 3] &= 0x3F
    return raw.reshape(rows, -1)
