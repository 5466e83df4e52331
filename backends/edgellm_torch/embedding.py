"""EmbeddingRunner over a torch model: whole texts in, one pooled vector for each out; nothing is kept of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
import numpy.typing as npt
import torch
from edgellm_kernels import ops
from edgellm_kernels.pages import Ragged
from torch import Tensor

from edgellm.contracts.embedding import EmbedderInfo
from edgellm_torch.attention import Step
from edgellm_torch.costs import group_blocks
from edgellm_torch.embedding_costs import KV_TYPE
from edgellm_torch.kv import KVMemory, table
from edgellm_torch.model import Model
from edgellm_torch.pool import BLOCK, blocks_for
from edgellm_torch.pooling import Pooling
from edgellm_torch.reporting import computing


class States(Protocol):
    """A model as seen from here: `EncoderModel`, `DecoderStates`, `BothWaysModel`."""

    device: str

    def __call__(self, tokens: Tensor, counts: Sequence[int]) -> Tensor:
        """float32 [rows, width] of int64 tokens [rows], in texts of `counts` rows."""
        ...

    def projected(self, vectors: Tensor) -> Tensor:
        """Pooled vectors [texts, width] through what comes behind the pooling; themselves where nothing does."""
        ...


class DecoderStates:
    """A decoder's states after its last norm. The KV has room for one call, and the next writes over it."""

    def __init__(self, model: Model, batch_tokens: int, batch_texts: int) -> None:
        self.device = model.device
        self._model = model
        blocks = group_blocks(model.decoder, batch_tokens, batch_texts, batch_tokens)
        self._kv = KVMemory(model.decoder, blocks, KV_TYPE, model.devices)

    def __call__(self, tokens: Tensor, counts: Sequence[int]) -> Tensor:
        blocks: list[range] = []
        for count in counts:
            first = blocks[-1].stop if blocks else 0
            blocks.append(range(first, first + blocks_for(count)))
        ragged = Ragged((0,) * len(counts), tuple(counts), table(blocks, self.device))
        step = Step(ragged, ragged.positions(self.device), ragged.slots(BLOCK))
        steps = [step] * len(self._model.decoder.windows)
        return self._model.norm(self._model.states(tokens, self._kv, steps))

    def projected(self, vectors: Tensor) -> Tensor:
        return vectors


class TorchEmbedder:
    """One loaded model. Not thread-safe: one thread calls it."""

    def __init__(self, states: States, pooling: Pooling, info: EmbedderInfo, vocabulary: int) -> None:
        self._states = states
        self._pooling = pooling
        self._info = info
        self._vocabulary = vocabulary
        self._closed = False

    @property
    def info(self) -> EmbedderInfo:
        return self._info

    def embed(self, texts: Sequence[Sequence[int]]) -> npt.NDArray[np.float32]:
        """Raises ValueError on texts that make no sense, GenerationFailed when torch fails.

        A text's vector does not depend, to the last bit, on the texts beside it.
        """
        counts = self._check(texts)
        with computing("PyTorch could not embed", "send fewer or shorter texts at once"), torch.inference_mode():
            tokens = torch.tensor([token for text in texts for token in text], device=self._states.device)
            vectors = pooled(self._states(tokens, counts), counts, self._pooling)
            return np.array(self._states.projected(vectors).cpu().numpy(), np.float32)

    def close(self) -> None:
        """Let go of the weights. A second call does nothing."""
        self._closed = True
        self.__dict__.pop("_states", None)

    def _check(self, texts: Sequence[Sequence[int]]) -> list[int]:
        """The texts' lengths."""
        if self._closed:
            raise ValueError("the embedder is closed")
        info, counts = self._info, [len(text) for text in texts]
        if not 0 < len(counts) <= info.batch_texts:
            raise ValueError(f"a call takes 1 to {info.batch_texts} texts, not {len(counts)}")
        if not 0 < min(counts) <= max(counts) <= info.context:
            raise ValueError(f"a text has 1 to {info.context} tokens")
        if sum(counts) > info.batch_tokens:
            raise ValueError(f"{sum(counts)} tokens exceed the {info.batch_tokens} of a call")
        for text in texts:
            for token in text:
                if not 0 <= token < self._vocabulary:
                    raise ValueError(f"token {token} is not one of the {self._vocabulary} in the vocabulary")
        return counts


def pooled(states: Tensor, counts: Sequence[int], how: Pooling) -> Tensor:
    """One vector for each text: [texts, width]."""
    if how == "mean":
        return ops.varlen_mean(states, counts)
    lengths = torch.tensor(counts, device=states.device)
    ends = lengths.cumsum(0)
    return states[ends - 1 if how == "last" else ends - lengths]
