"""Copies of sequences outside the KV pool: llama.cpp's own sequence state, kept in a numpy buffer.

The state carries no fingerprint of the model or the KV type; so a copy never leaves the runner that made it.
"""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
import numpy.typing as npt


class ParkedSequence:
    """Bytes of one sequence's KV. `trusted` is the runner's own note on its windowed layers."""

    def __init__(self, owner: object, length: int, trusted: int, state: npt.NDArray[np.uint8]) -> None:
        self.owner = owner
        self.trusted = trusted
        self.state = state
        self._length = length

    @property
    def length(self) -> int:
        return self._length

    @property
    def nbytes(self) -> int:
        return int(self.state.nbytes)


def read_state(api: Any, context: int, sequence: int) -> npt.NDArray[np.uint8] | None:
    """Copy a sequence's state out, once: no bytes object in between. None when llama.cpp refuses."""
    size = int(api.llama_state_seq_get_size(context, sequence))
    state = np.empty(size, np.uint8)
    written = int(api.llama_state_seq_get_data(context, _pointer(state), size, sequence))
    return state if written == size else None


def write_state(api: Any, context: int, state: npt.NDArray[np.uint8], sequence: int) -> bool:
    """Bring a state back into an empty sequence; False when there is no room for it."""
    return bool(api.llama_state_seq_set_data(context, _pointer(state), state.nbytes, sequence))


def _pointer(state: npt.NDArray[np.uint8]) -> Any:
    return state.ctypes.data_as(ctypes.POINTER(ctypes.c_uint8))
