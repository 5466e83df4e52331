"""Limits: the scheduler's settings, as they cross to the worker."""

from __future__ import annotations

import msgspec

from edgellm.contracts.engine import DraftMode


class Limits(msgspec.Struct, frozen=True):
    """How long a step may be, in predicted seconds, how much may wait or run, and how much is kept for later."""

    step_s: float = 0.5
    decode_step_s: float = 0.2  # while anyone is reading an answer
    queue_requests: int = 256
    queue_tokens: int = 1_000_000
    drafts: DraftMode = "auto"  # guess ahead: where it cannot change the text, wherever it pays, never
    max_running: int = 16  # requests computed at once
    idle_cells: int = 0  # KV left in the pool, for those who may come back, while others run: every step pays for it
    parked_bytes: int = 512 * 1024 * 1024  # and in RAM
