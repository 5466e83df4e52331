"""Limits: the scheduler's settings, as they cross to the worker."""

from __future__ import annotations

import msgspec


class Limits(msgspec.Struct, frozen=True):
    """How long a step may be, in predicted seconds, and how much may wait before requests are refused."""

    step_s: float = 0.5
    decode_step_s: float = 0.2  # while anyone is reading an answer
    queue_requests: int = 256
    queue_tokens: int = 1_000_000
