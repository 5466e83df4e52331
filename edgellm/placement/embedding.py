"""How much room a model that makes embeddings gets. Pure, like plan.py; calls compute whole texts and keep nothing."""

from __future__ import annotations

from collections.abc import Callable

from edgellm.config import Settings
from edgellm.contracts.engine import CostModel, ModelFile, Placement
from edgellm.errors import InsufficientMemory
from edgellm.placement.machine import Memory
from edgellm.placement.plan import trained_context
from edgellm.units import size

# Longer texts cost memory in every call; whoever has them asks for it with the setting `context`.
AUTO_CONTEXT = 2048
TEXTS = 64  # of one call


def place_embedder(
    model: ModelFile, cost: Callable[[int], CostModel], settings: Settings, memory: Memory, cores: int
) -> tuple[Placement, int]:
    """The room of `model`, and the bytes it is predicted to take; `cost` tells them for calls of so many tokens.

    Raises InsufficientMemory naming need and have.
    """
    trained = trained_context(model)
    context = settings.context or min(filter(None, (trained, AUTO_CONTEXT)))
    if trained is not None and context > trained:
        # The setting is for conversations: a model of short texts is no reason to change it.
        context = trained
    batch = max(context, 512)
    texts = min(TEXTS, batch)
    need = cost(batch).needs(batch, texts, batch).total
    budget = memory.available - int(settings.memory_reserve * memory.total)
    if need > budget:
        raise InsufficientMemory(
            f"the model needs {size(need)}; {size(max(0, budget))} of {size(memory.total)} is free for it",
            hint="close other programs, stop other models (`edgellm ps`), or take a smaller model",
        )
    threads = settings.threads or cores
    placement = Placement(
        context=context,
        capacity=batch,
        max_sequences=texts,
        batch_tokens=batch,
        threads=threads,
        threads_batch=threads,
        gpu_layers=settings.gpu_layers,
        use_mmap=settings.mmap,
        use_mlock=settings.mlock,
    )
    return placement, need
