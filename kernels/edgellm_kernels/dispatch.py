"""Which implementation computes an op, and why.

`CANDIDATES` lists them per op, the preferred first. Each says for a case why it does not apply, or nothing; the first
that says nothing is taken. The reference comes last and takes everything. Candidates are imported when chosen.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import cache
from importlib import import_module
from typing import Any, Final, NamedTuple


class Case(NamedTuple):
    """What is to be computed. `rows`: rounded up to a power of two; 0: any. `weight`: its GGUF type, or the KV kind."""

    device: str = "cpu"
    dtype: str = "float32"
    weight: str = ""
    rows: int = 0


class Candidate(NamedTuple):
    """An implementation: `where` is module:function; `refuses` says why it does not apply to a case, or nothing."""

    name: str
    where: str
    refuses: Callable[[Case], str | None]
    reason: str


class Choice(NamedTuple):
    """What was chosen for an op, why, and why each candidate before it was not."""

    op: str
    implementation: str
    reason: str
    refused: tuple[tuple[str, str], ...]
    call: Callable[..., Any]


Candidates = Mapping[str, tuple[Candidate, ...]]


def _anything(case: Case) -> str | None:
    """The reference takes rows of float32, wherever torch computes."""
    return None if case.dtype == "float32" else f"rows are float32 here, not {case.dtype}"


def _reference(module: str, function: str, how: str) -> tuple[Candidate, ...]:
    return (Candidate("reference", f"edgellm_kernels.reference.{module}:{function}", _anything, how),)


_TILES: Final = "torch in float32, 16 rows at a time, the weight a tile at a time"
_EXACT: Final = "torch in float32, one IEEE operation after the other"

CANDIDATES: Final[Candidates] = {
    "dequantise": _reference("dequantise", "dequantise", "torch, from planes, as ggml computes it"),
    "embed": _reference("dequantise", "embed", "torch, only the rows that are asked for"),
    "linear": _reference("linear", "linear", _TILES),
    "head_linear": _reference("linear", "head_linear", _TILES),
    "rms_norm": _reference("norms", "rms_norm", _EXACT),
    "layer_norm": _reference("norms", "layer_norm", _EXACT),
    "rope": _reference("rotate", "rope", "torch, angles made in float64"),
    "kv_write": _reference("kv", "kv_write", "torch, by index"),
    "attention": _reference("attention", "attention", "torch in float32, by 256 keys at absolute positions"),
    "varlen_attention": _reference("varlen", "varlen_attention", "torch in float32, each text by itself"),
    "varlen_mean": _reference("varlen", "varlen_mean", _EXACT),
    "activate": _reference("activation", "activate", _EXACT),
    "gated": _reference("activation", "gated", _EXACT),
    "soft_cap": _reference("activation", "soft_cap", _EXACT),
    "route": _reference("moe", "route", _EXACT),
    "experts": _reference("moe", "experts", f"each expert's rows together: {_TILES}"),
    "lora": _reference("lora", "lora", f"each adapter's rows together: {_TILES}"),
    "softmax": _reference("exact", "softmax", _EXACT),
}


def choose(op: str, case: Case, candidates: Candidates = CANDIDATES) -> Choice:
    """The implementation for a case. LookupError, with every reason, where none applies or the op is unknown."""
    if op not in candidates:
        raise LookupError(f"there is no op {op}; there are {', '.join(candidates)}")
    refused: list[tuple[str, str]] = []
    for candidate in candidates[op]:
        if (why := candidate.refuses(case)) is not None:
            refused.append((candidate.name, why))
            continue
        module, _, function = candidate.where.partition(":")
        call = getattr(import_module(module), function)
        return Choice(op, candidate.name, candidate.reason, tuple(refused), call)
    raise LookupError(f"nothing computes {op} for {case}: " + "; ".join(f"{name}: {why}" for name, why in refused))


@cache
def implementation(op: str, case: Case) -> Callable[..., Any]:
    """What to call, remembered by case."""
    return choose(op, case).call


def explain(device: str = "cpu") -> Iterator[Choice]:
    """What would compute each op on a device."""
    for op in CANDIDATES:
        yield choose(op, Case(device))
