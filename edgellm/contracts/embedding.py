"""Embeddings: what is asked for, and what an engine that makes them implements.

Such an engine executes whole texts, not steps of sequences: nothing is kept between two calls. It runs in a worker
process of its own kind.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol, runtime_checkable

import msgspec

from edgellm.contracts.engine import CostModel, EnginePlugin, ModelFile, Placement

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

# Why a model that is not a text's is refused, whichever engine looks at it.
NOT_POOLED = "the file does not say how embeddings are pooled, or it is a model that ranks"
FOR_EMBEDDINGS = "take a file made for embeddings"


class EmbedRequest(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Texts, or token ids taken as they are, to be turned into one vector each. Validated at the edge."""

    id: str
    model: str  # a name, as the user wrote it
    inputs: tuple[str | tuple[int, ...], ...]
    priority: int = 0  # lower is served first
    timeout_s: float | None = None
    keep_alive_s: float | None = None  # how long the model stays loaded after; None: the setting; < 0: forever


class EmbedderInfo(msgspec.Struct, frozen=True):
    """What a loaded embedder can take, and what belongs around every text."""

    engine: str
    context: int  # longest text, tokens, those around it included
    dimensions: int
    batch_tokens: int  # of one call
    batch_texts: int
    before: tuple[int, ...] = ()  # token ids: [CLS], a beginning …
    after: tuple[int, ...] = ()  # [SEP], an end …


class EmbeddingRunner(Protocol):
    """One loaded model. Used from one thread."""

    @property
    def info(self) -> EmbedderInfo: ...

    def embed(self, texts: Sequence[Sequence[int]]) -> npt.NDArray[np.float32]:
        """One vector for each text, shape (texts, dimensions), pooled as the file says, of any length.

        Texts are not empty, together within batch_tokens and batch_texts, each within context. Blocks with the GIL
        released. Raises GenerationFailed.
        """
        ...

    def close(self) -> None: ...


@runtime_checkable
class EmbeddingPlugin(EnginePlugin, Protocol):
    """An engine that makes embeddings too: three more methods."""

    def embeds(self, model: ModelFile) -> str | None:
        """None when this engine makes embeddings with `model`, else the reason why not."""
        ...

    def embedding_cost(self, model: ModelFile, batch_tokens: int) -> CostModel:
        """Memory needs for calls of so many tokens, from the header alone; pure."""
        ...

    def load_embedder(
        self, model: ModelFile, placement: Placement, progress: Callable[[float], None]
    ) -> EmbeddingRunner:
        """Load the weights, calling `progress` with 0..1. Raises LoadFailed with the engine's own words."""
        ...
