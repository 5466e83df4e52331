"""What a person may do next: ask the model there is, or fetch one that this machine can run."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from edgellm.cli.link import DaemonState
from edgellm.errors import EdgeError
from edgellm.library.catalogue import STARTER, Catalogue
from edgellm.library.catalogue_file import CatalogueEntry
from edgellm.library.manifest import Manifest
from edgellm.library.names import parse_name
from edgellm.paths import Paths
from edgellm.units import GIB, size

# Room beside the weights: KV of a long conversation, the process, and some for other programs.
_BESIDE = 2 * GIB
# A token reads all weights once. A core draws some 10 GiB/s from memory, and four take all there is; so this much per
# core is eight tokens a second, as fast as one reads.
_PER_CORE = GIB * 10 // 8
_CORES = 4


class Means(msgspec.Struct, frozen=True):
    """What there is to run a model with: free bytes of memory and disk, and cores."""

    memory: int
    disk: int
    cores: int


def next_step(manifests: Sequence[Manifest], paths: Paths, means: Means, daemon: DaemonState | None = None) -> str:
    """One sentence with a command to copy. `daemon`: the one that runs."""
    answers = [m for m in manifests if m.summary.has_chat_template and not m.summary.embeds]
    writes = [m for m in manifests if not m.summary.embeds]
    if answers:
        return f"`edgellm run {answers[0].full_name}` starts a conversation, {_for_programs(daemon)}"
    if writes:
        return f'`edgellm run {writes[0].full_name} "The sky is"` continues your text; {_pull(paths, means)}'
    return _pull(paths, means)


def _for_programs(daemon: DaemonState | None) -> str:
    if daemon is None:
        return "`edgellm serve` answers programs"
    leaves = " until nobody asks for a while; `edgellm serve` stays" if daemon.background else ""
    return f"programs are answered at {daemon.url}/v1{leaves}"


def _pull(paths: Paths, means: Means) -> str:
    try:
        catalogue = Catalogue.load(paths)
    except EdgeError:
        return f"`edgellm pull {STARTER}` fetches a small model to start with"
    starter = catalogue.get(parse_name(STARTER))
    small = f" ({size(starter.size)})" if starter else ""
    told = f"`edgellm pull {STARTER}` fetches a small model to start with{small}"
    better = fitting(catalogue.entries(), means)
    if better is None or str(better.name) == STARTER:
        return told
    return f"{told}; `edgellm pull {better.name}` a far better one that fits this machine ({size(better.size)})"


def fitting(entries: Sequence[CatalogueEntry], means: Means) -> CatalogueEntry | None:
    """The largest entry for conversations that fits and answers as fast as one reads; None where none does."""
    room = min(means.memory - _BESIDE, means.disk - GIB, min(means.cores, _CORES) * _PER_CORE)
    fit = (entry for entry in entries if "chat" in entry.capabilities and 0 < entry.size <= room)
    return max(fit, key=lambda entry: entry.size, default=None)
