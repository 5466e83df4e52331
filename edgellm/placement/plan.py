"""How much room a model gets: context, KV capacity, sequences and threads, from its cost and what the machine has.

Pure: everything it depends on is an argument, so a plan can be shown, tested and repeated. `edgellm plan` shows the
plan that the daemon would load with, from the same function.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import msgspec

from edgellm.config import Settings
from edgellm.contracts.engine import CostModel, EnginePlugin, ModelFile, Needs, Placement, title_of
from edgellm.errors import InsufficientMemory, InvalidRequest
from edgellm.placement.machine import Memory
from edgellm.units import number, size

# Longer contexts cost memory that most conversations never use; whoever needs one asks for it.
AUTO_CONTEXT: Final = 8192
# A model that cannot hold this much is of no use; rather say that memory is short.
MIN_AUTO_CONTEXT: Final = 512
LONGEST_CONTEXT: Final = 1 << 24  # where a file does not say what it was trained for
MOST_SEQUENCES: Final = 256  # what engines number
AUTO_KV_TYPE: Final = "auto"
_CONTEXT_STEP: Final = 256  # engines round KV up to blocks; a context cut to fit must not be rounded past the budget
# Automatic capacity may double the context as long as its KV takes no more than this share of available memory.
_DOUBLE_SHARE: Final = 8


class Room(msgspec.Struct, frozen=True):
    """Memory for one model, bytes: `budget` is what is available less the reserve."""

    memory: Memory
    reserve: int

    @property
    def budget(self) -> int:
        """Bytes that this model may take."""
        return self.memory.available - self.reserve


class Plan(msgspec.Struct, frozen=True):
    """A model's room on a machine, and why.

    needs      of the model; `draft` of the one that guesses for it
    longest    context that would fit, up to what the model was trained for; tokens
    disk       bytes of weights that do not fit and are read from disk whenever they are used
    """

    placement: Placement
    needs: Needs
    room: Room
    longest: int
    disk: int = 0
    draft: Needs | None = None

    @property
    def total(self) -> int:
        """Bytes of memory it takes; of weights on disk only the part that fits."""
        return self.needs.total + draft_total(self.draft) - self.disk


def make_plan(
    model: ModelFile,
    engine: EnginePlugin,
    settings: Settings,
    memory: Memory,
    cores: int,
    draft: ModelFile | None = None,
) -> Plan:
    """Decide the room of `model` on `engine`, with a smaller model of the same vocabulary beside it if there is one.

    Raises InvalidRequest when a requested context, capacity or KV type contradicts the model, the engine or another,
    InsufficientMemory when it does not fit (names need and have).
    """
    kv_type = chosen_kv_type(engine, settings)
    cost = engine.cost_model(model, kv_type)
    guessing = None if draft is None else engine.cost_model(draft, kv_type)
    return plan_room(model, cost, settings, memory, cores, kv_type, guessing)


def plan_room(
    model: ModelFile,
    cost: CostModel,
    settings: Settings,
    memory: Memory,
    cores: int,
    kv_type: str,
    draft: CostModel | None = None,
) -> Plan:
    """The same from what the model costs."""
    return _Planner(model, cost, settings, Room(memory, int(settings.memory_reserve * memory.total)), draft).plan(
        cores, kv_type
    )


def chosen_kv_type(engine: EnginePlugin, settings: Settings) -> str:
    """The KV type of the settings, or the engine's own. Raises InvalidRequest for one that it has not."""
    if settings.kv_type == AUTO_KV_TYPE:
        return engine.kv_types[0]
    if settings.kv_type not in engine.kv_types:
        raise InvalidRequest(
            f"{title_of(engine)} has no KV type {settings.kv_type}",
            hint="one of " + ", ".join((AUTO_KV_TYPE, *engine.kv_types)),
            param="kv_type",
        )
    return settings.kv_type


def trained_context(model: ModelFile) -> int | None:
    """The longest context the model was trained for, tokens; None where its file does not say."""
    value = model.metadata.get(f"{model.architecture}.context_length")
    return value if type(value) is int and value > 0 else None


def everyday_context(settings: Settings, trained: int | None) -> int:
    """The longest context, tokens, that a model gets where memory allows; `trained`: what it can take, if known."""
    if settings.context:
        return min(settings.context, trained or settings.context)
    return min(filter(None, (trained, AUTO_CONTEXT, settings.capacity)))


def as_trained(model: ModelFile, settings: Settings) -> Settings:
    """The settings for one of many models: of a context beyond what it was trained for it takes what it can."""
    trained = trained_context(model)
    if trained is None or settings.context <= trained:
        return settings
    return msgspec.structs.replace(settings, context=trained)


def require_trained(asked: int, trained: int | None) -> None:
    """Raises InvalidRequest where a context is asked of a model that was trained for less."""
    if trained and asked > trained:
        raise InvalidRequest(
            f"a context of {number(asked)} tokens was asked for; the model was trained for {number(trained)}",
            hint=f"ask for at most {number(trained)}, or leave the context out",
            param="context",
        )


def shape(settings: Settings, capacity: int) -> tuple[int, int]:
    """Sequences, and tokens of a step, of a model with room for `capacity` tokens."""
    batch = min(settings.batch_tokens, capacity)
    # As many again as run at once, for those that are kept between turns; each may need a row of a step.
    return min(2 * settings.max_sequences, MOST_SEQUENCES, batch), batch


def draft_total(needs: Needs | None) -> int:
    """Bytes that a draft model adds: it runs in the same process."""
    return 0 if needs is None else needs.total - needs.process


def longest_context(cost: CostModel, settings: Settings, budget: int, trained: int | None) -> int:
    """The longest single context of a model that fits in `budget` bytes, weights and all; 0: none."""
    return _longest(lambda capacity: cost.needs(capacity, *shape(settings, capacity)).total <= budget, trained)


def _longest(fits: Callable[[int], bool], trained: int | None) -> int:
    most = trained or LONGEST_CONTEXT
    if fits(most):
        return most
    low, high = 0, most // _CONTEXT_STEP + 1  # in blocks: the first fits (or is none), the second does not
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle * _CONTEXT_STEP) else (low, middle)
    return low * _CONTEXT_STEP


class _Planner:
    """One decision: what fits into `room`."""

    def __init__(
        self, model: ModelFile, cost: CostModel, settings: Settings, room: Room, draft: CostModel | None
    ) -> None:
        self.cost = cost
        self.draft = draft
        self.settings = settings
        self.room = room
        self.trained = trained_context(model)
        # Weights that are mapped need not be in memory as a whole; all else must be.
        self.spills = settings.spill and settings.mmap and not settings.mlock

    def plan(self, cores: int, kv_type: str) -> Plan:
        context = self._context()
        capacity = self._capacity(context)
        if not self._fits(capacity):
            raise self._too_big(capacity)
        sequences, batch = shape(self.settings, capacity)
        threads = self.settings.threads or cores
        needs, draft = self._needs(capacity)
        placement = Placement(
            context=context,
            capacity=capacity,
            max_sequences=sequences,
            batch_tokens=batch,
            threads=threads,
            threads_batch=threads,
            gpu_layers=self.settings.gpu_layers,
            use_mmap=self.settings.mmap,
            use_mlock=self.settings.mlock,
            kv_type=kv_type,
            exact=self.settings.exact,
            spills=self._total(capacity) > self.room.budget,
            memory=max(0, self.room.budget - draft_total(draft)),
        )
        disk = max(0, self._total(capacity) - self.room.budget)
        return Plan(placement, needs, self.room, self.longest(), disk, draft)

    def longest(self) -> int:
        """The longest single context that fits, in whole blocks unless it is all that the model was trained for."""
        return _longest(self._fits, self.trained)

    def _context(self) -> int:
        asked, trained = self.settings.context, self.trained
        if asked:
            require_trained(asked, trained)
            return asked
        wanted = everyday_context(self.settings, trained)
        if self._fits(wanted):
            return wanted
        least, longest = min(wanted, MIN_AUTO_CONTEXT), self.longest()
        if longest < least:
            raise self._too_big(least)
        return longest

    def _capacity(self, context: int) -> int:
        asked = self.settings.capacity
        if asked:
            if asked < context:
                raise InvalidRequest(
                    f"a capacity of {number(asked)} tokens cannot hold one context of {number(context)}",
                    hint=f"raise the capacity to at least {number(context)}, or lower the context",
                    param="capacity",
                )
            return asked
        double = 2 * context
        modest = self._needs(double)[0].kv_total * _DOUBLE_SHARE <= self.room.memory.available
        return double if modest and self._fits(double) else context

    def _needs(self, capacity: int) -> tuple[Needs, Needs | None]:
        sequences, batch = shape(self.settings, capacity)
        draft = self.draft.needs(capacity, sequences, batch) if self.draft else None
        return self.cost.needs(capacity, sequences, batch), draft

    def _total(self, capacity: int) -> int:
        needs, draft = self._needs(capacity)
        return needs.total + draft_total(draft)

    def _fits(self, capacity: int) -> bool:
        spared = self.cost.weights if self.spills else 0
        return self._total(capacity) - spared <= self.room.budget

    def _too_big(self, capacity: int) -> InsufficientMemory:
        room, (needs, draft) = self.room, self._needs(capacity)
        parts = [f"{size(needs.weights)} weights", f"{size(needs.kv_total)} KV for {number(capacity)} tokens"]
        parts += [f"{size(draft_total(draft))} for the draft model"] if draft else []
        have = f"{size(max(0, room.budget))} of {size(room.memory.total)} is free for it"
        kept = f" ({size(room.reserve)} is kept for others)" if room.reserve else ""
        message = f"the model needs {size(self._total(capacity))} ({', '.join(parts)}); {have}{kept}"
        return InsufficientMemory(message, hint=self._way_out())

    def _way_out(self) -> str:
        longest = self.longest()
        if longest >= MIN_AUTO_CONTEXT:
            return f"a context of {number(longest)} tokens fits; or close other programs"
        other = "close other programs, stop other models (`edgellm ps`), or take a smaller model"
        if self.cost.weights > self.room.budget and not self.settings.spill:
            return other + "; EDGELLM_SPILL=1 runs it from disk, which is slow: `edgellm plan` says how slow"
        return other
