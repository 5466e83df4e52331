"""Whether a model fits this machine, from its header alone: said before it is fetched, and before it is loaded."""

from __future__ import annotations

import msgspec

from edgellm.config import Settings
from edgellm.contracts.engine import CostModel, ModelFile
from edgellm.formats.summary import makes_embeddings
from edgellm.units import number, size


class Fit(msgspec.Struct, frozen=True):
    """A model's room on this machine, bytes and tokens."""

    weights: int
    kv: int
    context: int
    available: int

    def __str__(self) -> str:
        if not self.kv:
            return f"{size(self.weights)} weights, texts of {number(self.context)} tokens, {size(self.available)} free"
        return (
            f"{size(self.weights)} weights + {size(self.kv)} KV at {number(self.context)} tokens,"
            f" of {size(self.available)} free"
        )


def fit_of(model: ModelFile, settings: Settings) -> Fit:
    """The room `model` would get now.

    Raises EngineUnavailable when no installed engine takes it, InsufficientMemory when it does not fit.
    """
    from edgellm.placement.machine import cores, memory
    from edgellm.placement.plan import place
    from edgellm.plugins import engine_for

    if makes_embeddings(model):
        return _fit_of_embedder(model, settings)
    cost, now = engine_for(model).cost_model(model), memory()
    placement = place(model, cost, settings, now, cores())
    return Fit(cost.weights, cost.kv_per_token * placement.context, placement.context, now.available)


def _fit_of_embedder(model: ModelFile, settings: Settings) -> Fit:
    from edgellm.placement.embedding import place_embedder
    from edgellm.placement.machine import cores, memory
    from edgellm.plugins import embedder_for

    engine, now = embedder_for(model), memory()
    placement, _ = place_embedder(model, lambda batch: engine.embedding_cost(model, batch), settings, now, cores())
    return Fit(engine.cost_model(model).weights, 0, placement.context, now.available)


def spare_bytes(model: ModelFile, settings: Settings) -> int:
    """How many bytes of weights a model of this kind may have here, beside the KV of an everyday context."""
    from edgellm.placement.machine import memory
    from edgellm.placement.plan import AUTO_CONTEXT, trained_context
    from edgellm.plugins import engine_for

    cost, now = engine_for(model).cost_model(model), memory()
    context = settings.context or min(trained_context(model) or AUTO_CONTEXT, AUTO_CONTEXT)
    beside = CostModel(0, cost.kv_per_token, cost.overhead).total(context)
    return now.available - int(settings.memory_reserve * now.total) - beside
