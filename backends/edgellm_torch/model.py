"""The decoder: tokens in, logits of the wanted rows out. All sequences of a step lie behind each other in its rows."""

from __future__ import annotations

from collections.abc import Sequence

from edgellm_kernels import ops
from torch import Tensor

from edgellm_torch.attention import GroupedAttention, LatentAttention, MatMul, RMSNorm, Step
from edgellm_torch.config import Attention, Decoder, Gated, Layer
from edgellm_torch.feed_forward import ExpertNetwork, GatedNetwork
from edgellm_torch.kv import KVMemory
from edgellm_torch.loader import Weights


class Block:
    """One layer of the decoder."""

    def __init__(self, part: Layer, weights: Weights) -> None:
        self.attention_norm, self.feed_norm = RMSNorm(part.attention_norm, weights), RMSNorm(part.feed_norm, weights)
        self.attention_post = RMSNorm(part.attention_post_norm, weights) if part.attention_post_norm else None
        self.feed_post = RMSNorm(part.feed_post_norm, weights) if part.feed_post_norm else None
        self.attention: GroupedAttention | LatentAttention = (
            GroupedAttention(part.attention, weights)
            if isinstance(part.attention, Attention)
            else LatentAttention(part.attention, weights)
        )
        self.feed: GatedNetwork | ExpertNetwork = (
            GatedNetwork(part.feed, weights) if isinstance(part.feed, Gated) else ExpertNetwork(part.feed, weights)
        )


class Model:
    """A whole decoder on one device."""

    def __init__(self, decoder: Decoder, weights: Weights, device: str = "cpu") -> None:
        self.decoder = decoder
        self.device = device
        self.weights = weights
        self.embedding = weights.matrices[decoder.embedding.weight]
        self.blocks = [Block(layer, weights) for layer in decoder.layers]
        self.norm = RMSNorm(decoder.norm, weights)
        self.output = MatMul(decoder.output, weights)

    def __call__(self, tokens: Tensor, kv: KVMemory, steps: Sequence[Step], wanted: Tensor) -> Tensor | None:
        """Logits, float32 [wanted rows, vocabulary]; None where no row is wanted.

        tokens, wanted: int64; `steps`: of each group of the KV. Keys and values are written on the way. A row's logits
        do not depend, to the last bit, on what other rows there are: every operation here keeps rows apart.
        """
        x = self.states(tokens, kv, steps)
        if not wanted.numel():
            return None
        logits = self.output(self.norm(x[wanted]))
        return ops.soft_cap(logits, self.decoder.soft_cap) if self.decoder.soft_cap else logits

    def states(self, tokens: Tensor, kv: KVMemory, steps: Sequence[Step]) -> Tensor:
        """What the last layer makes of every row, before the last norm: float32 [rows, width]."""
        x = ops.embed(tokens, self.embedding)
        if self.decoder.embedding_scale != 1.0:
            x = x * self.decoder.embedding_scale
        for block, pages, group in zip(self.blocks, kv.pages, kv.groups, strict=True):
            mixed = block.attention(block.attention_norm(x), pages, steps[group])
            x = x + (block.attention_post(mixed) if block.attention_post else mixed)
            fed = block.feed(block.feed_norm(x))
            x = x + (block.feed_post(fed) if block.feed_post else fed)
        return x
