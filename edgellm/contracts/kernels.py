"""What computes an engine's operations, and why: for engines that choose among kernels."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

import msgspec

from edgellm.contracts.engine import EnginePlugin


class KernelChoice(msgspec.Struct, frozen=True):
    """The implementation of one operation. `refused`: others considered first, and why each does not apply."""

    op: str
    implementation: str
    reason: str
    refused: tuple[tuple[str, str], ...] = ()


class KernelReport(msgspec.Struct, frozen=True):
    """All choices of an engine on the device that it would use here."""

    device: str
    choices: tuple[KernelChoice, ...]


@runtime_checkable
class KernelPlugin(EnginePlugin, Protocol):
    """An engine that can say what computes its operations: one more method."""

    def kernels(self) -> KernelReport:
        """Only asked where `probe` said that the engine can run here."""
        ...
