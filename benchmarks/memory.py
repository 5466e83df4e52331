"""Memory as planned against memory as taken.

usage: memory.py MODEL.gguf ... [--engine NAME] [--contexts 2048 4096 8192] [--prompt 1200] [--json]

For each context and KV type a worker process loads the model, as the daemon would, and answers once; then its resident
memory stands beside the plan. Pages of its libraries' files count as many as were planned: the system maps more or
fewer, as they lie in its cache, and takes them back as it likes. Weights are read, not mapped, so that they count.

A model that makes embeddings gets every token of its vocabulary in texts as long as may be, and the most that it took
on the way counts, where the system tells: it keeps nothing. The same counts for the PyTorch engine, which gives a
step's memory back.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import tempfile
from collections.abc import Sequence
from pathlib import Path

import edgellm_llamacpp.costs
import edgellm_torch.costs
import msgspec
from resident import Watch, resident

from edgellm.config import Settings
from edgellm.contracts.embedding import EmbedRequest
from edgellm.contracts.events import Failed
from edgellm.contracts.request import GenerateRequest, Sampling, Tokens
from edgellm.engine.protocol import Load
from edgellm.engine.supervisor import LocalModel
from edgellm.formats.gguf import read_model
from edgellm.formats.summary import makes_embeddings
from edgellm.placement.embedding import place_embedder
from edgellm.placement.machine import cores, memory
from edgellm.placement.plan import make_plan, trained_context
from edgellm.plugins import embedder_for, engine_for

CONTEXTS = (2048, 4096, 8192)
EMBEDDING_CONTEXTS = (128, 512, 2048)  # no longer than a model takes
LIBRARIES = {"llamacpp": edgellm_llamacpp.costs.LIBRARIES, "torch": edgellm_torch.costs.LIBRARIES}
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
    settings = Settings(context=context, kv_type=kv_type, mmap=False, threads=1, max_sequences=1)
    engine = engine_for(model, engine_name)
    plan = make_plan(model, engine, settings, memory(), cores())
    load = Load(engine.name, str(path), plan.placement, path.stem)
    request = GenerateRequest(
        id="1",
        model=load.model,
        prompt=Tokens(tuple(100 + n % 1000 for n in range(min(prompt, context - 16)))),
        sampling=Sampling(temperature=0.0, seed=1),
        max_tokens=8,
    )
    taken = asyncio.run(_taken(load, request))
    needs = plan.needs
    return Measured(
        path.stem, context, plan.placement.capacity, kv_type, needs.weights, needs.kv_total, plan.total, taken
    )


def measure_embedder(path: Path, context: int, engine_name: str = "llamacpp") -> Measured:
    """The same for a model that makes embeddings, which keeps no KV."""
    model = read_model(path)
    settings = Settings(context=context, mmap=False, threads=1)
    engine = embedder_for(model, engine_name)
    placement, planned = place_embedder(
        model, lambda batch: engine.embedding_cost(model, batch), settings, memory(), cores()
    )
    needs = engine.embedding_cost(model, placement.batch_tokens).needs(placement.batch_tokens, 1, 1)
    load = Load(engine.name, str(path), placement, path.stem, embeds=True)
    size = next(tensor.shape[1] for tensor in model.tensors if tensor.name == "token_embd.weight")
    longest = placement.context
    texts = [tuple(token % size for token in range(n, n + longest)) for n in range(0, size, longest)]
    request = EmbedRequest(id="1", model=load.model, inputs=tuple(texts))
    taken = asyncio.run(_taken(load, request))
    return Measured(path.stem, placement.context, 0, "", needs.weights, 0, planned, taken)


async def _taken(load: Load, request: GenerateRequest | EmbedRequest) -> int:
    """Resident bytes of a worker after one answer."""
    with tempfile.TemporaryDirectory() as folder:
        local = LocalModel(load, log_path=Path(folder) / "worker.log")
        try:
            await local.preload()
            assert local.pid is not None
            watch = Watch(local.pid, LIBRARIES[load.engine]) if load.embeds or load.engine == "torch" else None
            async for event in local.generate(request):
                if isinstance(event, Failed):
                    raise SystemExit(event.error.message)
            return watch.peak() if watch else resident(local.pid, LIBRARIES[load.engine])
        finally:
            await local.stop(0.0)


def rows(path: Path, engine: str, prompt: int, contexts: Sequence[int] = CONTEXTS) -> list[Measured]:
    """Of one model, with all KV types; of one that makes embeddings, with contexts of its own."""
    model = read_model(path)
    if makes_embeddings(model):
        most = trained_context(model) or max(EMBEDDING_CONTEXTS)
        shorter = sorted({min(context, most) for context in EMBEDDING_CONTEXTS})
        return [measure_embedder(path, context, engine) for context in shorter]
    return [measure(path, context, kv_type, prompt, engine) for context in contexts for kv_type in KV_TYPES[engine]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="+", type=Path)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--prompt", type=int, default=PROMPT)
    parser.add_argument("--engine", default="llamacpp", choices=KV_TYPES)
    parser.add_argument("--contexts", type=int, nargs="+", default=CONTEXTS)
    given = parser.parse_args()
    found = [row for path in given.models for row in rows(path, given.engine, given.prompt, given.contexts)]
    if given.json:
        print(json.dumps([msgspec.to_builtins(row) for row in found]))
        return
    print("| model | context | KV room | KV type | weights | KV | planned | taken | off |")
    print("|---|---|---|---|---|---|---|---|---|")
    for row in found:
        figures = " | ".join(f"{count / MIB:.0f}" for count in (row.weights, row.kv, row.predicted, row.taken))
        print(f"| {row.model} | {row.context:,} | {row.capacity:,} | {row.kv_type} | {figures} | {row.error:+.1%} |")


if __name__ == "__main__":
    main()
