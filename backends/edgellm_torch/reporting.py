"""What the engine tells: torch's failures in the app's words, and lines for the worker's log."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from edgellm.contracts.engine import ModelFile
from edgellm.errors import GenerationFailed, InsufficientMemory


@contextmanager
def computing(what: str, hint: str) -> Iterator[None]:
    """Raises GenerationFailed for what torch raises; but a GPU that failed computes nothing more: the process ends."""
    try:
        yield
    except torch.AcceleratorError:
        raise
    except (RuntimeError, MemoryError) as error:
        raise GenerationFailed(f"{what}: {_first_line(error)}", hint=hint) from error


@contextmanager
def loading(model: ModelFile, smaller: str) -> Iterator[None]:
    """Raises InsufficientMemory where torch gets no more. `smaller`: what to take instead."""
    try:
        yield
    except torch.AcceleratorError:
        raise
    except (RuntimeError, MemoryError) as error:
        raise InsufficientMemory(
            f"{model.path.name} does not fit in memory: {_first_line(error)}",
            hint=f"close other programs, or take {smaller}",
        ) from error


def log(line: str) -> None:
    """For people who look why something is slow or small: `edgellm logs`."""
    sys.stderr.write(f"torch: {line}\n")
    sys.stderr.flush()


def _first_line(error: Exception) -> str:
    return (str(error) or type(error).__name__).splitlines()[0]
