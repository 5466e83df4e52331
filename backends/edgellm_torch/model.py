"""The decoder: tokens in, logits of the wanted rows out. All sequences of a step lie behind each other in its rows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

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

    def __call__(self, x: Tensor, attend: Callable[[Tensor], Tensor]) -> Tensor:
        """`attend`: a way of this layer's attention. x and the result: float32 [rows, width]."""
        mixed = attend(self.attention_norm(x))
        x = x + (self.attention_post(mixed) if self.attention_post else mixed)
        fed = self.feed(self.feed_norm(x))
        return x + (self.feed_post(fed) if self.feed_post else fed)


class Stage:
    """Layers that follow each other on one device, and the weights that lie there."""

    def __init__(self, device: str, layers: Sequence[Layer], weights: Weights) -> None:
        self.device = device
        self.weights = weights
        self.blocks = [Block(layer, weights) for layer in layers]


class Model:
    """A whole decoder, on one device or on several: what goes through its layers is handed on from stage to stage."""

    def __init__(self, decoder: Decoder, stages: Sequence[Stage]) -> None:
        """The first stage has the embedding's weights, the last one those of the output; all layers are in some."""
        self.decoder = decoder
        self.stages = stages
        self.device = stages[0].device  # where tokens go in; logits come out on the last one's
        self.embedding = stages[0].weights.matrices[decoder.embedding.weight]
        self.norm = RMSNorm(decoder.norm, stages[-1].weights)
        self.output = MatMul(decoder.output, stages[-1].weights)

    @property
    def devices(self) -> list[str]:
        """Of each layer."""
        return [stage.device for stage in self.stages for _ in stage.blocks]

    @property
    def nbytes(self) -> int:
        """Of all weights."""
        return sum(stage.weights.nbytes for stage in self.stages)

    def __call__(self, tokens: Tensor, kv: KVMemory, steps: Sequence[Step], wanted: Tensor) -> Tensor | None:
        """Logits, float32 [wanted rows, vocabulary]; None where no row is wanted.

        tokens, wanted: int64; `steps`: of each group of the KV. Keys and values are written on the way. A row's logits
        do not depend, to the last bit, on what other rows there are: every operation here keeps rows apart.
        """
        x = self.states(tokens, kv, steps)
        if not wanted.numel():
            return None
        logits = self.output(self.norm(x[wanted.to(x.device)]))
        return ops.soft_cap(logits, self.decoder.soft_cap) if self.decoder.soft_cap else logits

    def states(self, tokens: Tensor, kv: KVMemory, steps: Sequence[Step]) -> Tensor:
        """What the last layer makes of every row, before the last norm: float32 [rows, width]."""
        x = self.embedded(tokens)
        layers = zip(kv.pages, kv.groups, strict=True)  # each stage takes its own from it
        for stage in self.stages:
            x, here = x.to(stage.device), [step.to(stage.device) for step in steps]
            for block, (pages, group) in zip(stage.blocks, layers, strict=False):
                x = block(x, partial(block.attention, pages=pages, step=here[group]))
        return x

    def embedded(self, tokens: Tensor) -> Tensor:
        """What goes into the first layer."""
        x = ops.embed(tokens, self.embedding)
        return x * self.decoder.embedding_scale if self.decoder.embedding_scale != 1.0 else x
