"""How much room a model gets: context, KV capacity, sequences and threads, from its cost and what the machine has.

Pure: everything it depends on is an argument, so a plan can be shown, tested and repeated.
"""

from __future__ import annotations

import msgspec

from edgellm.config import Settings
from edgellm.contracts.engine import CostModel, ModelFile, Placement
from edgellm.errors import InsufficientMemory, InvalidRequest
from edgellm.placement.machine import Memory
from edgellm.units import number, size

# Longer contexts cost memory that most conversations never use; whoever needs one asks for it.
AUTO_CONTEXT = 8192
# A model that cannot hold this much is of no use; rather say that memory is short.
MIN_AUTO_CONTEXT = 512
MOST_SEQUENCES = 256  # what engines number
_CONTEXT_STEP = 256  # engines round KV up to blocks; a context cut to fit must not be rounded past the budget
# Automatic capacity may double the context as long as its KV takes no more than this share of available memory.
_DOUBLE_SHARE = 8


class Room(msgspec.Struct, frozen=True):
    """Memory for one model, bytes: `budget` is what is available less the reserve."""

    memory: Memory
    reserve: int

    @property
    def budget(self) -> int:
        """Bytes that this model may take."""
        return self.memory.available - self.reserve


def place(model: ModelFile, cost: CostModel, settings: Settings, memory: Memory, cores: int) -> Placement:
    """Decide the room of `model`.

    Raises InvalidRequest when a requested context or capacity contradicts the model or each other (names both sizes),
    InsufficientMemory when it does not fit (names need and have).
    """
    room = Room(memory, int(settings.memory_reserve * memory.total))
    trained = trained_context(model)
    context = _context(cost, settings, trained, room)
    capacity = _capacity(cost, settings, context, room)
    if cost.total(capacity) > room.budget:
        raise _too_big(cost, capacity, room)
    batch = min(settings.batch_tokens, capacity)
    threads = settings.threads or cores
    return Placement(
        context=context,
        capacity=capacity,
        # As many again as run at once, for those that are kept between turns; each may need a row of a step.
        max_sequences=min(2 * settings.max_sequences, MOST_SEQUENCES, batch),
        batch_tokens=batch,
        threads=threads,
        threads_batch=threads,
        gpu_layers=settings.gpu_layers,
        use_mmap=settings.mmap,
        use_mlock=settings.mlock,
    )


def trained_context(model: ModelFile) -> int | None:
    """The longest context the model was trained for, tokens; None where its file does not say."""
    value = model.metadata.get(f"{model.architecture}.context_length")
    return value if isinstance(value, int) and value > 0 else None


def fitting_context(cost: CostModel, budget: int) -> int | None:
    """The most tokens of KV that fit beside the weights in `budget` bytes; None: no limit, as KV costs nothing."""
    if cost.kv_per_token <= 0:
        return None if cost.total(0) <= budget else 0
    return max(0, (budget - cost.total(0)) // cost.kv_per_token)


def _context(cost: CostModel, settings: Settings, trained: int | None, room: Room) -> int:
    if settings.context:
        if trained is not None and settings.context > trained:
            raise InvalidRequest(
                f"a context of {number(settings.context)} tokens was asked for;"
                f" the model was trained for {number(trained)}",
                hint=f"ask for at most {number(trained)}, or leave the context out",
                param="context",
            )
        return settings.context
    wanted = min(filter(None, (trained, AUTO_CONTEXT, settings.capacity)))
    fitting = fitting_context(cost, room.budget)
    if fitting is None or fitting >= wanted:
        return wanted
    least = min(wanted, MIN_AUTO_CONTEXT)
    if fitting < least:
        raise _too_big(cost, least, room)
    return max(least, fitting // _CONTEXT_STEP * _CONTEXT_STEP)


def _capacity(cost: CostModel, settings: Settings, context: int, room: Room) -> int:
    if settings.capacity:
        if settings.capacity < context:
            raise InvalidRequest(
                f"a capacity of {number(settings.capacity)} tokens cannot hold one context of {number(context)}",
                hint=f"raise the capacity to at least {number(context)}, or lower the context",
                param="capacity",
            )
        return settings.capacity
    double = 2 * context
    modest = cost.kv_per_token * double * _DOUBLE_SHARE <= room.memory.available
    return double if modest and cost.total(double) <= room.budget else context


def _too_big(cost: CostModel, capacity: int, room: Room) -> InsufficientMemory:
    need = cost.total(capacity)
    parts = f"{size(cost.weights)} weights, {size(cost.kv_per_token * capacity)} KV for {number(capacity)} tokens"
    have = f"{size(max(0, room.budget))} of {size(room.memory.total)} is free for it"
    kept = f" ({size(room.reserve)} is kept for others)" if room.reserve else ""
    fitting = fitting_context(cost, room.budget)
    if fitting is not None and fitting >= MIN_AUTO_CONTEXT:
        hint = f"a context of {number(fitting)} tokens fits; or close other programs"
    else:
        hint = "close other programs, stop other models (`edgellm ps`), or take a smaller model"
    return InsufficientMemory(f"the model needs {size(need)} ({parts}); {have}{kept}", hint=hint)
