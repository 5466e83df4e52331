"""Memory as planned against memory as taken: python benchmarks/memory.py MODEL.gguf ... [--engine NAME] [--json]

For each context and KV type a worker process loads the model, as the daemon would, and answers once; then its resident
memory stands beside the plan: shared libraries included, as the plan is for a worker that runs alone. Weights are read,
not mapped, so that their pages count.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import tempfile
from pathlib import Path

import msgspec
import psutil

from edgellm.config import Settings
from edgellm.contracts.request import GenerateRequest, Sampling, Tokens
from edgellm.engine.protocol import Load
from edgellm.engine.supervisor import LocalModel
from edgellm.formats.gguf import read_model
from edgellm.placement.machine import cores, memory
from edgellm.placement.plan import make_plan
from edgellm.plugins import engine_for

CONTEXTS = (2048, 4096, 8192)
KV_TYPES = {"llamacpp": ("f16", "q8_0"), "torch": ("f16", "int8")}
PROMPT = 1200  # tokens; scratch for a context is touched as far as it is used
MIB = 1 << 20


class Measured(msgspec.Struct, frozen=True):
    """One load; bytes."""

    model: str
    context: int
    capacity: int
    kv_type: str
    weights: int
    kv: int
    predicted: int
    taken: int

    @property
    def error(self) -> float:
        """How far the plan is off, as a fraction of what was taken; above 0: it promised too much."""
        return self.predicted / self.taken - 1


def measure(path: Path, context: int, kv_type: str, prompt: int = PROMPT, engine_name: str = "llamacpp") -> Measured:
    """Load the model at `path` into a worker, answer once, and look."""
    model = read_model(path)
    settings = Settings(context=context, kv_type=kv_type, mmap=False, threads=1)
    engine = engine_for(model, engine_name)
    plan = make_plan(model, engine, settings, memory(), cores())
    load = Load(engine.name, str(path), plan.placement, path.stem)
    taken = asyncio.run(_taken(load, min(prompt, context - 16)))
    needs = plan.needs
    return Measured(
        path.stem, context, plan.placement.capacity, kv_type, needs.weights, needs.kv_total, plan.total, taken
    )


async def _taken(load: Load, prompt: int) -> int:
    """Resident bytes of a worker after one answer."""
    with tempfile.TemporaryDirectory() as folder:
        local = LocalModel(load, log_path=Path(folder) / "worker.log")
        request = GenerateRequest(
            id="1",
            model=load.model,
            prompt=Tokens(tuple(100 + n % 1000 for n in range(prompt))),
            sampling=Sampling(temperature=0.0, seed=1),
            max_tokens=8,
        )
        try:
            async for _ in local.generate(request):
                pass
            return int(psutil.Process(local.pid).memory_info().rss)
        finally:
            await local.stop(0.0)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="+", type=Path)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--prompt", type=int, default=PROMPT)
    parser.add_argument("--engine", default="llamacpp", choices=KV_TYPES)
    given = parser.parse_args()
    rows = [
        measure(path, context, kv_type, given.prompt, given.engine)
        for path in given.models
        for context in CONTEXTS
        for kv_type in KV_TYPES[given.engine]
    ]
    if given.json:
        print(json.dumps([msgspec.to_builtins(row) for row in rows]))
        return
    print("| model | context | KV room | KV type | weights | KV | planned | taken | off |")
    print("|---|---|---|---|---|---|---|---|---|")
    for row in rows:
        figures = " | ".join(f"{count / MIB:.0f}" for count in (row.weights, row.kv, row.predicted, row.taken))
        print(f"| {row.model} | {row.context:,} | {row.capacity:,} | {row.kv_type} | {figures} | {row.error:+.1%} |")


if __name__ == "__main__":
    main()
