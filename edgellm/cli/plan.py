"""`edgellm plan`: the room a model would get on this machine, from its header, and what else would fit."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from edgellm.cli.output import Output
from edgellm.cli.terminal import encodes
from edgellm.config import Settings, load_settings
from edgellm.contracts.engine import CostModel, EnginePlugin, ModelFile, Needs, title_of
from edgellm.errors import EdgeError, InsufficientMemory, NotFound
from edgellm.formats.gguf import read_model
from edgellm.formats.splits import join, part_paths
from edgellm.formats.summary import makes_embeddings, summarise
from edgellm.library.catalogue import Catalogue, CatalogueEntry
from edgellm.library.fitting import Fit, fit_of
from edgellm.library.names import parse_name
from edgellm.library.references import InFile, parse_reference
from edgellm.library.store import Store
from edgellm.paths import Paths, default_paths, expanded
from edgellm.placement.disk import DiskSpeed, disk_speed
from edgellm.placement.machine import Memory, cores, memory
from edgellm.placement.plan import Plan, chosen_kv_type, draft_total, longest_context, make_plan, trained_context
from edgellm.plugins import engine_for
from edgellm.units import conversations, number, parameters, rate, size

_BAR_WIDTH = 22
_QUANTISED = ("q", "i")  # how the names of quantised types begin
_ENDLESS = 1 << 60


class Subject(msgspec.Struct, frozen=True):
    """A model to plan for: what it is called, its header, the engine for it."""

    name: str
    model: ModelFile
    engine: EnginePlugin


def show_plan(name: str, draft: str | None, flags: dict[str, object], *, json: bool) -> None:
    """Print the plan that the daemon would load `name` with; with what does not fit comes InsufficientMemory."""
    output = Output(json=json)
    paths = default_paths()
    settings = load_settings(paths, flags).settings
    entry = None if _is_here(name, paths) else _catalogued(name, paths)
    if entry is not None:
        _show_entry(entry, settings, output)
        return
    model = _header(name, paths)
    if makes_embeddings(model):
        _show_embedder(name, fit_of(model, settings), output)
        return
    subject = Subject(_title(name), model, engine_for(model, settings.engine))
    guessing = _draft(draft, settings, model, paths)
    now = memory()
    try:
        plan, error = make_plan(subject.model, subject.engine, settings, now, cores(), guessing), None
    except InsufficientMemory as short:
        # Shown as if there were room; what is missing is said at the end.
        endless = Memory(now.total, _ENDLESS)
        plan, error = make_plan(subject.model, subject.engine, settings, endless, cores(), guessing), short
        plan = msgspec.structs.replace(plan, room=msgspec.structs.replace(plan.room, memory=now))
    speed = _disk(subject, plan, error)
    if json:
        if error is not None:
            raise error
        output.document(_document(subject, plan, speed, settings))
        return
    _show(subject, plan, settings, output)
    _show_disk(plan, speed, output)
    if error is not None:
        raise error


# -- what is meant -----------------------------------------------------------------------------------


def _is_here(name: str, paths: Paths) -> bool:
    """Whether `name` is a file, or a model in the store."""
    if isinstance(parse_reference(name), InFile):
        return True
    try:
        Store(paths).require(name)
    except NotFound:
        return False
    return True


def _catalogued(name: str, paths: Paths) -> CatalogueEntry | None:
    return Catalogue.load(paths).get(parse_name(name))


def _header(name: str, paths: Paths) -> ModelFile:
    """Raises NotFound, LibraryError, BadModelFile."""
    reference = parse_reference(name)
    if isinstance(reference, InFile):
        return _file(expanded(reference.path))
    store = Store(paths)
    return store.header(store.require(name))


def _title(name: str) -> str:
    reference = parse_reference(name)
    return Path(reference.path).name if isinstance(reference, InFile) else name


def _draft(name: str | None, settings: Settings, model: ModelFile, paths: Paths) -> ModelFile | None:
    """The model that guesses: the one asked about, else the one the daemon would load beside `model`."""
    if name is None and (not settings.draft or settings.drafts == "off"):
        return None
    found = _header(name or settings.draft, paths)
    return None if found.path == model.path else found


def _file(path: Path) -> ModelFile:
    """The model at `path`, of all its parts where it is split."""
    if not path.exists():
        raise NotFound(f"no file {path}", hint="check the path", param="model")
    model = read_model(path)
    others = [read_model(part) for part in part_paths(path) if part != path] if "split.count" in model.metadata else []
    return join([model, *others])


# -- what is shown -----------------------------------------------------------------------------------


def _show(subject: Subject, plan: Plan, settings: Settings, output: Output) -> None:
    about, placement = summarise(subject.model), plan.placement
    facts = [about.architecture, parameters(about.parameters), about.quantization, f"{about.layers} layers"]
    output.sentence(" · ".join([subject.name, *facts, title_of(subject.engine)]))
    output.sentence(
        f"RAM  {_bar(plan.total, plan.room.budget)}  {size(plan.total)} of {size(max(0, plan.room.budget))}"
    )
    needs = plan.needs
    rows = {
        "weights": size(needs.weights),
        "KV": f"{size(needs.kv_total)} · {conversations(placement.capacity, placement.context)}, {placement.kv_type}",
        **_kinds(subject, plan),
        "activations": f"{size(needs.activations)} · {placement.max_sequences} sequences,"
        f" steps of {number(placement.batch_tokens)} tokens",
        "process": size(needs.process),
    }
    if plan.draft is not None:
        rows["draft model"] = f"{size(draft_total(plan.draft))} · {_parts(plan.draft)}"
    rows["left to others"] = f"{size(plan.room.reserve)} of {size(plan.room.memory.total)}"
    rows["longest context"] = _longest(subject, plan, settings)
    output.pairs(rows)
    if placement.kv_type.startswith(_QUANTISED):
        output.note(
            f"{placement.kv_type} saves memory; where the engine has no kernels of edgellm's for it,"
            " long contexts decode far slower than with f16"
        )
    if settings.cache_ram_mib:
        output.note(f"up to {settings.cache_ram_mib} MiB more while conversations rest (cache_ram_mib)")


def _show_embedder(name: str, fit: Fit, output: Output) -> None:
    if output.json:
        output.document({"name": name} | msgspec.to_builtins(fit))
    else:
        output.sentence(f"{name} · {fit}")


def _kinds(subject: Subject, plan: Plan) -> dict[str, str]:
    """Each kind of layer on a line, where there is more than one."""
    cost = _cost(subject, plan.placement.kv_type)
    if len(plan.needs.kv) < 2:
        return {}
    rows: dict[str, str] = {}
    for kind, count in plan.needs.kv.items():
        same = [part for part in cost.kv if part.kind == kind]
        window = max(part.window for part in same)
        told = f"{sum(part.layers for part in same)} layers" + (f", window {number(window)}" if window else "")
        rows[f"  {kind}"] = f"{size(count)} · {told}"
    return rows


def _longest(subject: Subject, plan: Plan, settings: Settings) -> str:
    """The longest context that fits with this KV type, and with one that takes less where that helps."""
    trained = trained_context(subject.model)
    found = _context_of(plan, settings, _cost(subject, plan.placement.kv_type), trained)
    told = f"{number(found)} tokens"
    if trained is not None:
        told += ", all it was trained for" if found == trained else f" of {number(trained)} it was trained for"
    smaller = next((kind for kind in ("q8_0", "int8") if kind in subject.engine.kv_types), None)
    if smaller is None or found == trained or plan.placement.kv_type == smaller:
        return told
    try:
        other = _context_of(plan, settings, _cost(subject, smaller), trained)
    except EdgeError:
        return told
    return f"{told}; {number(other)} with {smaller}" if other > found else told


def _context_of(plan: Plan, settings: Settings, cost: CostModel, trained: int | None) -> int:
    beside = draft_total(plan.draft)
    return longest_context(cost, settings, plan.room.budget - beside, trained)


def _cost(subject: Subject, kv_type: str) -> CostModel:
    return subject.engine.cost_model(subject.model, kv_type)


def _bar(part: int, whole: int) -> str:
    full, empty = ("█", "░") if encodes(sys.stdout, "█") else ("#", ".")
    filled = _BAR_WIDTH if part > whole else max(1, round(_BAR_WIDTH * part / max(1, whole)))
    return full * filled + empty * (_BAR_WIDTH - filled)


def _parts(needs: Needs) -> str:
    return f"{size(needs.weights)} weights, {size(needs.kv_total)} KV"


def _disk(subject: Subject, plan: Plan, error: InsufficientMemory | None) -> DiskSpeed | None:
    """How fast it would run from disk, where the weights do not fit."""
    beyond = plan.disk or (max(0, plan.total - plan.room.budget) if error is not None else 0)
    if not beyond or plan.needs.total - plan.needs.weights > plan.room.budget:
        return None
    return disk_speed(subject.model, beyond)


def _show_disk(plan: Plan, speed: DiskSpeed | None, output: Output) -> None:
    if speed is None:
        return
    told = f"{_tokens(speed.slowest)} to {_tokens(speed.fastest)} tok/s at {rate(speed.rate)}"
    state = "runs partly from disk" if plan.disk else "could run partly from disk (EDGELLM_SPILL=1)"
    output.sentence(f"{state}: each token needs {size(speed.touched)} of weights, {told}")


def _tokens(count: float) -> str:
    return f"{count:.1f}" if count < 10 else f"{count:.0f}"


def _show_entry(entry: CatalogueEntry, settings: Settings, output: Output) -> None:
    """A model that is not here: the catalogue knows its size, only its header knows the rest."""
    now = memory()
    room = now.available - int(settings.memory_reserve * now.total)
    fits = entry.size <= room if entry.size else None
    if output.json:
        known = {"name": str(entry.name), "weights": entry.size, "context": entry.context, "budget": room, "fits": fits}
        output.document(known | {"from": "catalogue"})
        return
    facts: Sequence[str] = [entry.title, entry.quantization, f"{number(entry.context)} tokens" if entry.context else ""]
    output.sentence(" · ".join([str(entry.name), *(fact for fact in facts if fact)]))
    if entry.size:
        output.sentence(f"RAM  {_bar(entry.size, room)}  {size(entry.size)} of {size(max(0, room))}, weights alone")
    else:
        output.sentence(f"RAM  {size(max(0, room))} can be used; how large the model is shows when it is pulled")
    output.note(
        f"from the catalogue: it is not here. Its header says the rest: `edgellm pull {entry.name}`, then plan again"
    )


def _document(subject: Subject, plan: Plan, speed: DiskSpeed | None, settings: Settings) -> dict[str, Any]:
    cost, trained = _cost(subject, plan.placement.kv_type), trained_context(subject.model)
    return {
        "name": subject.name,
        "engine": title_of(subject.engine),
        "summary": msgspec.to_builtins(summarise(subject.model)),
        "placement": msgspec.to_builtins(plan.placement),
        "needs": msgspec.to_builtins(plan.needs) | {"total": plan.needs.total},
        "kv": msgspec.to_builtins(cost.kv),
        "draft": None if plan.draft is None else msgspec.to_builtins(plan.draft),
        "total": plan.total,
        "budget": plan.room.budget,
        "reserve": plan.room.reserve,
        "memory": msgspec.to_builtins(plan.room.memory),
        "longest_context": {
            kind: _context_of(plan, settings, _cost(subject, kind), trained) for kind in _possible(subject)
        },
        "trained_context": trained,
        "disk": None if speed is None else msgspec.to_builtins(speed) | {"beyond": plan.disk},
        "kv_type": chosen_kv_type(subject.engine, settings),
    }


def _possible(subject: Subject) -> list[str]:
    """The KV types that this model's heads allow."""
    found = []
    for kind in subject.engine.kv_types:
        try:
            _cost(subject, kind)
        except EdgeError:
            continue
        found.append(kind)
    return found
