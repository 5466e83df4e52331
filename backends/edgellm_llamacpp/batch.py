"""The tokens of one step, in numpy arrays that llama.cpp reads in place.

Filled with one slice assignment per array: a ctypes store per token would cost more than the rest of a step.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

import numpy as np

from edgellm.contracts.runner import Row


class Batch:
    """A `llama_batch` over arrays of our own. Each token belongs to one sequence."""

    def __init__(self, api: Any, size: int) -> None:
        self._tokens = np.zeros(size, np.int32)
        self._positions = np.zeros(size, np.int32)
        self._sequences = np.zeros(size, np.int32)
        self._outputs = np.zeros(size, np.int8)
        self._counts = np.ones(size, np.int32)  # sequences per token
        first = self._sequences.ctypes.data
        self._pointers = np.arange(first, first + 4 * size, 4, dtype=np.uintp)  # one to each token's sequence
        fields = dict(api.llama_batch._fields_)
        self.struct = api.llama_batch(
            n_tokens=0,
            token=_pointer(self._tokens, fields["token"]),
            embd=None,
            pos=_pointer(self._positions, fields["pos"]),
            n_seq_id=_pointer(self._counts, fields["n_seq_id"]),
            seq_id=_pointer(self._pointers, fields["seq_id"]),
            logits=_pointer(self._outputs, fields["logits"]),
        )

    def fill(self, rows: Sequence[Row], vocabulary: int) -> list[int]:
        """Take over tokens and drafts of `rows`; returns the index of each row's last token.

        The logits there and at its drafts, which follow, may be asked for where the row is sampled.
        Raises ValueError on a token that is not in the vocabulary. The caller has checked that they fit.
        """
        tokens: list[int] = []
        positions: list[int] = []
        sequences: list[int] = []
        last: list[int] = []
        for row in rows:
            count = len(row.tokens) + len(row.draft)
            tokens += row.tokens
            last.append(len(tokens) - 1)
            tokens += row.draft
            positions += range(row.start, row.start + count)
            sequences += [row.sequence] * count
        low, high = min(tokens), max(tokens)
        if low < 0 or high >= vocabulary:
            raise ValueError(f"token {low if low < 0 else high} is not one of the {vocabulary} in the vocabulary")
        total = len(tokens)
        self._tokens[:total] = tokens
        self._positions[:total] = positions
        self._sequences[:total] = sequences
        self._outputs[:total] = 0
        for row, index in zip(rows, last, strict=True):
            if row.sample is not None:
                self._outputs[index : index + 1 + len(row.draft)] = 1
        self.struct.n_tokens = total
        return last

    def ask_all(self) -> None:
        """Mark every token as one whose output is wanted."""
        self._outputs[: self.struct.n_tokens] = 1


def _pointer(array: np.ndarray[Any, Any], kind: Any) -> Any:
    return ctypes.cast(array.ctypes.data, kind)
