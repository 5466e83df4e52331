"""From what a user names to the files that make the model: the quantisation that fits best, or the one named."""

from __future__ import annotations

import re
import shutil
from collections.abc import Sequence
from typing import NamedTuple

from edgellm import units
from edgellm.errors import EngineUnavailable, InsufficientMemory, InvalidRequest, NotFound
from edgellm.library import choose
from edgellm.library.choose import Choice, Offer
from edgellm.library.fetch import Sight, Source
from edgellm.library.finish import Card
from edgellm.library.fitting import spare_bytes
from edgellm.library.names import ModelName, name_from_file
from edgellm.library.references import OnHub, OnWeb
from edgellm.library.remote import Context, Item
from edgellm.library.sources import hub, web
from edgellm.library.sources.hub import HubRepo
from edgellm.library.staging import SPARE


class Found(NamedTuple):
    """What is to be pulled, and what a look at its first file showed already."""

    item: Item
    seen: Sight | None = None


def on_hub(reference: OnHub, wanted: ModelName | None, context: Context) -> Found:
    """The model that a repository has under the reference's selector, or the best that fits.

    Raises NotFound, InvalidRequest, InsufficientMemory, and what the hub says.
    """
    repo = hub.repo(reference.repo, reference.revision, context.report)
    offer = choose.offer(repo.files)
    if not offer.choices and not offer.broken:
        raise _no_models(repo)
    seen: Sight | None = None
    notes: list[str] = []
    if reference.selector:
        choice = choose.named(offer, reference.selector, repo.id)
    else:
        choice, seen, notes = best(repo, offer.choices, context)
    if offer.projectors:
        eyes = min(offer.projectors, key=lambda file: file.size)
        notes.append(
            f"it has a projector for images, too ({eyes.path}); images are not supported yet, so it stays there"
        )
    return Found(hub_item(repo, choice, wanted or hub_name(repo.id, choice), Card(licence=repo.licence), notes), seen)


def hub_item(repo: HubRepo, choice: Choice, name: ModelName, card: Card, notes: Sequence[str] = ()) -> Item:
    """What is needed to fetch one choice of a repository."""
    return Item(
        name,
        f"hf:{repo.id}:{choice.name}",
        tuple(hub.remote(repo, file) for file in choice.files),
        tuple(f"hf:{repo.id}@{repo.commit}/{file.path}" for file in choice.files),
        f"from {hub.host()} ({repo.id})",
        hub.refusal(repo.id),
        hub.WAY_OUT,
        card,
        tuple(notes),
    )


def best(repo: HubRepo, choices: Sequence[Choice], context: Context) -> tuple[Choice, Sight | None, list[str]]:
    """The largest quantisation whose weights fit into memory beside an everyday conversation, and onto the disk.

    One header tells what a conversation costs: that of the file that is likeliest to be chosen. Raises
    InsufficientMemory when none fits: fetching one anyway takes its name.
    """
    ordered = choose.best_first(Offer(tuple(choices), (), {}))
    if not ordered:
        raise NotFound(f"{repo.id} has no whole model in GGUF form", hint="a split one lacks parts", param="model")
    if len(ordered) == 1:
        return ordered[0], None, []
    from edgellm.placement.machine import memory

    guess = next((each for each in ordered if each.size <= memory().available * 3 // 4), ordered[-1])
    source = Source(hub.remote(repo, guess.files[0]), hub.refusal(repo.id), hub.WAY_OUT, context.tuning)
    try:
        seen = source.look(context.report)
    finally:
        source.close()
    try:
        room = spare_bytes(seen.model, context.settings) if seen.model else memory().available * 3 // 4
    except EngineUnavailable:
        return guess, seen, []  # said again, with everything else, before it is fetched
    disk = _free(context)
    fitting = [each for each in ordered if each.size <= min(room, disk)]
    if not fitting:
        raise _none_fits(repo, ordered, room, disk)
    others = len(ordered) - 1
    notes = [f"{fitting[0].quantization or fitting[0].name}: the best of {others + 1} files that fits this machine"]
    return fitting[0], seen if fitting[0] == guess else None, notes


def on_web(reference: OnWeb, wanted: ModelName | None) -> Found:
    """The file at an address. Raises InvalidRequest."""
    remote = web.remote(reference.url)
    part = re.search(r"-\d{5}-of-\d{5}\.gguf$", remote.name, re.IGNORECASE)
    if part:
        raise InvalidRequest(
            f"{remote.name} is one part of a split model, and an address names only one file",
            hint="from a hub all parts come together: hf:org/repo:QUANT",
            param="model",
        )
    name = wanted or name_from_file(re.sub(r"\.gguf$", "", remote.name, flags=re.IGNORECASE))
    if name is None:
        raise InvalidRequest(f"no model name can be made of {remote.name}", hint="give one with --name", param="name")
    shown = web.shown(reference.url)
    host = shown.split("/")[2]
    way_out = "check the address and the connection; HTTPS_PROXY=http://… names a proxy"
    return Found(Item(name, shown, (remote,), (shown,), f"from {host}", web.refusal, way_out))


def hub_name(repo: str, choice: Choice) -> ModelName:
    """`Qwen/Qwen3-4B-GGUF` with Q4_K_M gives `qwen3-4b:q4_k_m`."""
    plain = re.sub(r"[-_.]?gguf$", "", repo.split("/")[-1], flags=re.IGNORECASE)
    name = name_from_file(plain)
    if name is None:
        raise InvalidRequest(f"no model name can be made of {repo}", hint="give one with --name", param="name")
    tag = name_from_file(choice.quantization) if choice.quantization else None
    return ModelName(name.name, tag.name) if tag else name


def _free(context: Context) -> int:
    folder = context.paths.models
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    return shutil.disk_usage(folder).free - SPARE


def _no_models(repo: HubRepo) -> NotFound:
    paths = [file.path.lower() for file in repo.files]
    if any(path.endswith(".safetensors") for path in paths):
        near = hub.similar(repo.id)
        told = "did you mean " + ", ".join(f"hf:{each}" for each in near) + "?" if near else "look for one named …-GGUF"
        return NotFound(f"{repo.id} has safetensors and no GGUF file", hint=told, param="model")
    if any(path.endswith((".bin", ".pt", ".pth", ".ckpt", ".pkl")) for path in paths):
        return NotFound(
            f"{repo.id} has only pickled weights, which can run code of their own and are never opened",
            hint="look for a repository of the same model named …-GGUF",
            param="model",
        )
    return NotFound(f"{repo.id} has no GGUF file", hint="look for a repository named …-GGUF", param="model")


def _none_fits(repo: HubRepo, ordered: Sequence[Choice], room: int, disk: int) -> InsufficientMemory:
    least = min(ordered, key=lambda each: each.size)
    if least.size > disk:
        have = f"{units.size(max(0, disk))} of the disk can be used"
    else:
        have = f"{units.size(max(0, room))} of memory can hold weights"
    return InsufficientMemory(
        f"none of the {len(ordered)} files of {repo.id} fits this machine: the smallest,"
        f" {least.quantization or least.name}, has {units.size(least.size)}; {have}",
        hint=f"name one to fetch it all the same: hf:{repo.id}:{least.quantization or least.name}",
    )
