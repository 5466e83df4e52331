"""What is told of models in memory: their state, their load, the room they take."""

from __future__ import annotations

from typing import Literal

import msgspec

State = Literal["stopped", "loading", "ready", "restarting", "failed", "draining"]


class Health(msgspec.Struct, frozen=True):
    """How a model is now, as the daemon sees it."""

    state: State
    running: int = 0  # requests being computed
    waiting: int = 0  # requests accepted and not yet started
    detail: str | None = None  # why, when not ready
    engine: str = ""  # that runs it, as people call it; "" where that is no matter


class LoadedModel(msgspec.Struct, frozen=True, kw_only=True):
    """One model in memory, or on its way in or out."""

    name: str
    state: State
    size: int  # bytes predicted for weights, KV and the process
    context: int  # longest sequence, tokens
    capacity: int  # KV room over all sequences, tokens
    kv_used: int  # of it now
    running: int
    waiting: int
    last_used: float  # Unix time
    expires_at: float | None  # Unix time at which it is unloaded; None: busy, or kept for ever
    pid: int | None  # of its worker process
    detail: str | None = None  # why, when not ready
    engine: str = ""  # that runs it, as people call it
    suspended: int = 0  # times that a request had to give way to others, since its worker started
    restarts: int = 0  # worker processes started in place of dead ones
