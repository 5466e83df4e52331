"""From what a user names to the files that make the model: the quantisation that fits best, or the one named."""

from __future__ import annotations

import re
import shutil
from collections.abc import Sequence
from typing import NamedTuple

from edgellm import units
from edgellm.errors import ChecksumMismatch, EngineUnavailable, InsufficientMemory, InvalidRequest, NotFound
from edgellm.library import choose
from edgellm.library.catalogue_file import CatalogueEntry, HubSource, Variant
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


class Offered(NamedTuple):
    """One of several files that could be pulled."""

    repo: HubRepo
    choice: Choice


class Best(NamedTuple):
    """The one that was chosen, what a look at it showed, and why."""

    offered: Offered
    seen: Sight | None
    notes: list[str]


def on_hub(reference: OnHub, wanted: ModelName | None, context: Context) -> Found:
    """The model that a repository has under the reference's selector, or the best that fits.

    Raises NotFound, InvalidRequest, InsufficientMemory, and what the hub says.
    """
    repo = hub.repo(reference.repo, reference.revision, context.report)
    offer = choose.offer(repo.files)
    if not offer.choices:
        raise _no_models(repo, offer)
    if reference.selector:
        chosen = Best(Offered(repo, choose.named(offer, reference.selector, repo.id)), None, [])
    else:
        chosen = best([Offered(repo, choice) for choice in offer.choices], context)
    choice, notes = chosen.offered.choice, chosen.notes
    if offer.projectors:
        eyes = min(offer.projectors, key=lambda file: file.size)
        notes.append(f"it can see, with {eyes.path}; images are not supported yet, so that file stays there")
    name = wanted or hub_name(repo.id, choice)
    card = Card(_plain(repo.id), repo.licence)  # a file's own title is often that of a checkpoint
    return Found(hub_item(repo, choice, name, card, notes), chosen.seen)


def in_catalogue(
    entry: CatalogueEntry, variants: Sequence[Variant], name: ModelName, context: Context, *, named: bool
) -> Found:
    """The best that fits of the variants that lie on a hub; `named`: the user chose, so it need not fit."""
    repos: dict[tuple[str, str | None], HubRepo] = {}
    offered, checks = [], {}
    for variant in variants:
        source = variant.source
        assert isinstance(source, HubSource)
        place = (source.repo, source.revision)
        if place not in repos:
            repos[place] = hub.repo(*place, context.report)
        choice = _choice(variant, source, repos[place])
        offered.append(Offered(repos[place], choice))
        checks[choice.name] = _checked(source, choice)
    open_ones = [each for each in offered if not each.repo.gated] if not hub.signed_in() else []
    if named:
        chosen = Best(offered[0], None, [])
    else:
        chosen = best(open_ones or offered, context)
        if open_ones and len(open_ones) < len(offered):
            chosen.notes.append("others are gated: with a token in HF_TOKEN they can be chosen, too")
    repo, choice = chosen.offered
    card = Card(entry.title, entry.licence, entry.sampling)
    return Found(hub_item(repo, choice, name, card, [*chosen.notes, checks[choice.name]]), chosen.seen)


def _choice(variant: Variant, source: HubSource, repo: HubRepo) -> Choice:
    """The catalogue's files as the hub has them."""
    there = {file.path: file for file in repo.files}
    missing = [part.path for part in source.files if part.path not in there]
    if missing:
        raise NotFound(
            f"{repo.id} does not have {missing[0]} any more",
            hint=f"update edgellm, or see what it has: edgellm pull hf:{repo.id}:?",
            param="model",
        )
    return Choice(
        variant.quantization or choose.label(source.files[0].path), tuple(there[p.path] for p in source.files)
    )


def _checked(source: HubSource, choice: Choice) -> str:
    """What is known of the hashes before the download. Raises ChecksumMismatch where hub and catalogue contradict."""
    known = [(part.sha256, file.sha256) for part, file in zip(source.files, choice.files, strict=True)]
    differ = any(ours and theirs and ours != theirs for ours, theirs in known)
    if differ and (source.verified or source.revision):
        raise ChecksumMismatch(
            f"{choice.name} of {source.repo} is not the file that the catalogue knows: its digest differs",
            hint=f"update edgellm; to take it as it is, name it: edgellm pull hf:{source.repo}:{choice.name}",
        )
    if source.verified:
        return f"{choice.quantization}: its hash is known and checked"
    if differ:
        return f"{choice.quantization}: it has changed since the catalogue was written; its hash is the hub's own word"
    agreed = "; the catalogue has heard the same" if all(ours for ours, _ in known) else ""
    return f"{choice.quantization}: its hash is the hub's own word{agreed}"


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


def best(offered: Sequence[Offered], context: Context) -> Best:
    """The largest quantisation whose weights fit into memory beside an everyday conversation, and onto the disk.

    One header tells what a conversation costs: that of the file that is likeliest to be chosen. Raises
    InsufficientMemory when none fits: fetching one anyway takes its name.
    """
    if len(offered) == 1:
        return Best(offered[0], None, [])
    from edgellm.placement.machine import memory

    ordered = sorted(offered, key=lambda each: (each.choice.full, -each.choice.size))
    usual = memory().available * 3 // 4
    guess = next((each for each in ordered if each.choice.size <= usual), ordered[-1])
    source = Source(
        hub.remote(guess.repo, guess.choice.files[0]), hub.refusal(guess.repo.id), hub.WAY_OUT, context.tuning
    )
    try:
        seen = source.look(context.report)
    finally:
        source.close()
    try:
        room = spare_bytes(seen.model, context.settings) if seen.model else usual
    except EngineUnavailable:
        return Best(guess, seen, [])  # said again, with everything else, before it is fetched
    disk = _free(context)
    fitting = [each for each in ordered if each.choice.size <= min(room, disk)]
    if not fitting:
        raise _none_fits(ordered, room, disk)
    label = fitting[0].choice.quantization or fitting[0].choice.name
    notes = [f"{label}: the best of {len(ordered)} that fits this machine"]
    return Best(fitting[0], seen if fitting[0] == guess else None, notes)


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
    name = name_from_file(_plain(repo))
    if name is None:
        raise InvalidRequest(f"no model name can be made of {repo}", hint="give one with --name", param="name")
    tag = name_from_file(choice.quantization) if choice.quantization else None
    return ModelName(name.name, tag.name) if tag else name


def _plain(repo: str) -> str:
    """A repository's name without its owner and its kind."""
    return re.sub(r"[-_.]?gguf$", "", repo.split("/")[-1], flags=re.IGNORECASE) or repo


def _free(context: Context) -> int:
    folder = context.paths.models
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    return shutil.disk_usage(folder).free - SPARE


def _no_models(repo: HubRepo, offer: Offer) -> NotFound:
    paths = [file.path.lower() for file in repo.files]
    if offer.broken:
        stem, missing = next(iter(offer.broken.items()))
        told = f"{repo.id} has no whole model: {stem} lacks parts {missing}"
        return NotFound(told, hint="a split model is all or nothing; look for another repository", param="model")
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


def _none_fits(ordered: Sequence[Offered], room: int, disk: int) -> InsufficientMemory:
    repo, least = min(ordered, key=lambda each: each.choice.size)
    if least.size > disk:
        have = f"{units.size(max(0, disk))} of the disk can be used"
    else:
        have = f"{units.size(max(0, room))} of memory can hold weights"
    label = least.quantization or least.name
    return InsufficientMemory(
        f"none of the {len(ordered)} files of {repo.id} fits this machine: the smallest, {label}, has"
        f" {units.size(least.size)}; {have}",
        hint=f"name one to fetch it all the same: hf:{repo.id}:{label}",
    )
