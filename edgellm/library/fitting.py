"""Whether a model fits this machine, from its header alone: said before it is fetched, and before it is loaded."""

from __future__ import annotations

import msgspec

from edgellm.config import Settings
from edgellm.contracts.engine import ModelFile
from edgellm.formats.summary import makes_embeddings
from edgellm.units import conversations, number, size


class Fit(msgspec.Struct, frozen=True):
    """A model's room on this machine, bytes and tokens."""

    weights: int
    kv: int
    capacity: int
    context: int
    available: int

    def __str__(self) -> str:
        if not self.kv:
            return f"{size(self.weights)} weights, texts of {number(self.capacity)} tokens, {size(self.available)} free"
        return (
            f"{size(self.weights)} weights + {size(self.kv)} KV for {conversations(self.capacity, self.context)},"
            f" of {size(self.available)} free"
        )


def fit_of(model: ModelFile, settings: Settings) -> Fit:
    """The room `model` would get now.

    Raises EngineUnavailable when no installed engine takes it, InsufficientMemory when it does not fit.
    """
    from edgellm.placement.machine import cores, memory
    from edgellm.placement.plan import make_plan
    from edgellm.plugins import engine_for

    if makes_embeddings(model):
        return _fit_of_embedder(model, settings)
    now = memory()
    plan = make_plan(model, engine_for(model, settings.engine), settings, now, cores())
    return Fit(plan.needs.weights, plan.needs.kv_total, plan.placement.capacity, plan.placement.context, now.available)


def _fit_of_embedder(model: ModelFile, settings: Settings) -> Fit:
    from edgellm.placement.embedding import place_embedder
    from edgellm.placement.machine import cores, memory
    from edgellm.plugins import embedder_for

    engine, now = embedder_for(model, settings.engine), memory()
    placement, _ = place_embedder(model, lambda batch: engine.embedding_cost(model, batch), settings, now, cores())
    weights = engine.embedding_cost(model, placement.batch_tokens).weights
    return Fit(weights, 0, placement.context, placement.context, now.available)


def spare_bytes(model: ModelFile, settings: Settings) -> int:
    """How many bytes of weights a model of this kind may have here, beside the KV of an everyday context."""
    from edgellm.placement.machine import memory
    from edgellm.placement.plan import AUTO_CONTEXT, chosen_kv_type, shape, trained_context
    from edgellm.plugins import engine_for

    now = memory()
    budget = now.available - int(settings.memory_reserve * now.total)
    if makes_embeddings(model):
        return budget * 9 // 10  # texts come and go: there is no KV to keep
    engine = engine_for(model, settings.engine)
    context = settings.context or min(trained_context(model) or AUTO_CONTEXT, AUTO_CONTEXT)
    needs = engine.cost_model(model, chosen_kv_type(engine, settings)).needs(context, *shape(settings, context))
    return budget - (needs.total - needs.weights)


def pace_of(model: ModelFile) -> str:
    """How fast it will about be here, in words; nothing for embeddings."""
    from edgellm.placement.machine import cores
    from edgellm.placement.pace import memory_rate, pace, tokens_per_second

    return "" if makes_embeddings(model) else pace(tokens_per_second(model, memory_rate(cores())))
