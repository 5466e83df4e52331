"""Logits of the torch engine at every position, taken where its runner asks for a few; how far they are from others."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from contract.driving import GREEDY

from edgellm.contracts.engine import Placement
from edgellm.contracts.runner import Row
from edgellm.formats.gguf import read_model
from edgellm.formats.splits import join, part_paths

Logits = npt.NDArray[np.float32]


class Listening:
    """Stands in for a runner's model and keeps the logits of every row that goes through it."""

    def __init__(self, model: Any) -> None:
        self.model = model
        self.decoder = model.decoder
        self.device = model.device
        self.heard: list[Logits] = []

    def __call__(self, tokens: Any, kv: Any, steps: Any, wanted: Any) -> Any:
        import torch

        every = self.model(tokens, kv, steps, torch.arange(tokens.shape[0]))
        self.heard.append(every.numpy())
        return every[wanted] if wanted.numel() else None


def load(path: Path, context: int, *, kv_type: str = "f32", batch: int = 64) -> Any:
    """A runner of the torch engine with room for one sequence. `path`: of the model, or of its first part."""
    from edgellm_torch.plugin import TorchPlugin

    placement = Placement(
        context=context,
        capacity=context,
        max_sequences=1,
        batch_tokens=batch,
        threads=1,
        threads_batch=1,
        kv_type=kv_type,
    )
    model = join([read_model(part) for part in part_paths(path)])
    return TorchPlugin().load(model, placement, lambda _done: None)


def run(
    path: Path, ids: Sequence[int], context: int, *, drawn: int = 0, chunk: int = 37, kv_type: str = "f32"
) -> tuple[list[int], Logits]:
    """The text with `drawn` likeliest tokens behind it, and the logits at each but the last of those.

    Logits have the shape (tokens, vocabulary). `ids` come in chunks, the last few of them one by one.
    """
    runner = load(path, context, kv_type=kv_type)
    listening = runner._model = Listening(runner._model)
    text, start, single = list(ids), 0, max(0, len(ids) - 3)
    while start < len(text):
        end = min(start + chunk, single) if start < single else start + 1
        last = end == len(text) and end < len(ids) + drawn
        (result,) = runner.collect(runner.submit([Row(0, start, text[start:end], GREEDY if last else None)]))
        text += result.tokens
        start = end
        if last and len(text) == len(ids) + drawn:
            break
    runner.close()
    return text, np.concatenate(listening.heard)


def require_agreement(text: Sequence[int], prompt: int, ours: Logits, truth: Logits, margin: float) -> None:
    """The truth's likeliest token is ours, at every position where it leads by `margin`; our answer is made of ours.

    So is the truth's own answer, up to the first token that it chose by less.
    """
    second, first = np.sort(truth, axis=-1)[:, -2:].T
    clear = first - second >= margin
    assert clear.mean() > 0.9
    assert (ours.argmax(-1) == truth.argmax(-1))[clear].all()
    assert text[prompt:] == [int(row.argmax()) for row in ours[prompt - 1 :]]


class Distance(NamedTuple):
    """The largest over all positions.

    error   norm of the difference over norm of the logits without their mean
    kld     of the token probabilities, from those of the truth
    """

    error: float
    kld: float


def distance(ours: Logits, truth: Logits) -> Distance:
    spread = truth - truth.mean(axis=-1, keepdims=True)
    errors = np.linalg.norm(ours - truth, axis=-1) / np.linalg.norm(spread, axis=-1)
    p, q = (_log_softmax(rows.astype(np.float64)) for rows in (truth, ours))
    return Distance(float(errors.max()), float((np.exp(p) * (p - q)).sum(axis=-1).max()))


def _log_softmax(rows: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    shifted = rows - rows.max(axis=-1, keepdims=True)
    found: npt.NDArray[np.float64] = shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))
    return found
