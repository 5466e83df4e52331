"""Whether a model fits this machine, said before it is loaded."""

from __future__ import annotations

from pathlib import Path

import msgspec

from edgellm.config import Settings
from edgellm.units import number, size


class Fit(msgspec.Struct, frozen=True):
    """A model's room on this machine, bytes and tokens."""

    weights: int
    kv: int
    context: int
    available: int

    def __str__(self) -> str:
        return (
            f"{size(self.weights)} weights + {size(self.kv)} KV at {number(self.context)} tokens,"
            f" of {size(self.available)} free"
        )


def fit(path: Path, settings: Settings) -> Fit:
    """The room the model at `path` would get now, from its header alone.

    Raises EngineUnavailable when no installed engine takes it, InsufficientMemory when it does not fit, BadModelFile.
    """
    from edgellm.formats.gguf import read_model
    from edgellm.placement.machine import cores, memory
    from edgellm.placement.plan import place
    from edgellm.plugins import engine_for

    model = read_model(path)
    cost, now = engine_for(model).cost_model(model), memory()
    placement = place(model, cost, settings, now, cores())
    return Fit(cost.weights, cost.kv_per_token * placement.context, placement.context, now.available)
