"""What a person may do next: ask the model there is, or fetch one that this machine can run."""

from __future__ import annotations

from collections.abc import Sequence

from edgellm.errors import EdgeError
from edgellm.library.catalogue import STARTER, Catalogue, CatalogueEntry
from edgellm.library.manifest import Manifest
from edgellm.library.names import parse_name
from edgellm.paths import Paths
from edgellm.units import GIB, size

# Room beside the weights: KV of a long conversation, the process, and some for other programs.
_BESIDE = 2 * GIB
# Larger ones answer slower than one reads, on the memory of an everyday computer.
_COMFORTABLE = 6 * GIB


def next_step(manifests: Sequence[Manifest], paths: Paths, memory: int, disk: int) -> str:
    """One sentence with a command to copy. `memory` and `disk` are free bytes."""
    answers = [m for m in manifests if m.summary.has_chat_template and not m.summary.embeds]
    writes = [m for m in manifests if not m.summary.embeds]
    if answers:
        return f"`edgellm run {answers[0].full_name}` starts a conversation, `edgellm serve` answers programs"
    if writes:
        return f'`edgellm run {writes[0].full_name} "The sky is"` continues your text; {_pull(paths, memory, disk)}'
    return _pull(paths, memory, disk)


def _pull(paths: Paths, memory: int, disk: int) -> str:
    try:
        catalogue = Catalogue.load(paths)
    except EdgeError:
        return f"`edgellm pull {STARTER}` fetches a small model to start with"
    starter = catalogue.get(parse_name(STARTER))
    small = f" ({size(starter.size)})" if starter else ""
    told = f"`edgellm pull {STARTER}` fetches a small model to start with{small}"
    better = fitting(catalogue.entries(), memory, disk)
    if better is None or str(better.name) == STARTER:
        return told
    return f"{told}; `edgellm pull {better.name}` a far better one that fits this machine ({size(better.size)})"


def fitting(entries: Sequence[CatalogueEntry], memory: int, disk: int) -> CatalogueEntry | None:
    """The largest entry that runs comfortably in so many free bytes; None where none does."""
    room = min(memory - _BESIDE, disk - GIB, _COMFORTABLE)
    return max((entry for entry in entries if entry.size <= room), key=lambda entry: entry.size, default=None)
