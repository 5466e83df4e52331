"""Six workloads, as a client of any OpenAI-compatible server sees them. Every one streams /v1/chat/completions.

    single   one answer of 128 tokens                                        decode tok/s, TTFT
    batch8   eight different prompts at once, 64 tokens each                 output tok/s
    shared   eight at once under the same 900-word system prompt             wall
    turns    one conversation of six turns                                   TTFT of the later turns
    stall    a stream is being read when an 1,800-word prompt arrives        longest gap, the prompt's TTFT
    copy     repeat a given text word for word                               decode tok/s

Prompts are random words, seeded per round, so that no server can answer from a cache of an earlier round.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import random
import statistics
import time
from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple

import httpx2

VOCABULARY = [
    "river",
    "stone",
    "market",
    "engine",
    "window",
    "letter",
    "garden",
    "silver",
    "planet",
    "bridge",
    "music",
    "paper",
    "winter",
    "coffee",
    "doctor",
    "forest",
    "signal",
    "harbor",
    "pencil",
    "castle",
    "island",
    "thunder",
    "basket",
    "mirror",
    "candle",
    "rocket",
    "valley",
    "copper",
    "ladder",
    "button",
    "saddle",
    "marble",
    "velvet",
    "tunnel",
    "anchor",
    "meadow",
    "lantern",
    "puzzle",
    "ribbon",
    "orchard",
]

Message = dict[str, str]
Figures = dict[str, float]


class Target(NamedTuple):
    """A server under test."""

    client: httpx2.AsyncClient
    url: str
    model: str
    extra: dict[str, Any]


class Reply(NamedTuple):
    """One streamed answer: seconds from sending, and when each piece of text came."""

    started: float
    arrivals: list[float]
    ended: float
    text: str
    completion_tokens: int

    @property
    def ttft(self) -> float:
        return (self.arrivals[0] if self.arrivals else self.ended) - self.started

    @property
    def decode_rate(self) -> float:
        return (self.completion_tokens - 1) / max(1e-9, self.ended - self.started - self.ttft)


def words(count: int, seed: int) -> str:
    return " ".join(random.Random(seed).choices(VOCABULARY, k=count))


def conversation(system: str, user: str) -> list[Message]:
    return [{"role": "system", "content": system}, {"role": "user", "content": user}]


async def ask(target: Target, messages: list[Message], max_tokens: int, begun: asyncio.Event | None = None) -> Reply:
    """One greedy streamed answer. `begun` is set when its first text is there."""
    body = {
        "model": target.model,
        "messages": messages,
        "max_tokens": max_tokens,
        "temperature": 0,
        "stream": True,
        "stream_options": {"include_usage": True},
        **target.extra,
    }
    started = time.perf_counter()
    arrivals: list[float] = []
    text: list[str] = []
    tokens = 0
    async with target.client.stream("POST", target.url + "/v1/chat/completions", json=body) as response:
        if response.status_code != 200:
            raise RuntimeError(f"{response.status_code}: {(await response.aread())[:300]!r}")
        async for line in response.aiter_lines():
            if not line.startswith("data: ") or line == "data: [DONE]":
                continue
            chunk = json.loads(line[6:])
            tokens = (chunk.get("usage") or {}).get("completion_tokens", tokens)
            for choice in chunk.get("choices") or []:
                if piece := choice["delta"].get("content"):
                    arrivals.append(time.perf_counter())
                    text.append(piece)
                    if begun is not None:
                        begun.set()
    return Reply(started, arrivals, time.perf_counter(), "".join(text), tokens or len(arrivals))


async def single(target: Target, seed: int) -> Figures:
    prompt = conversation("You write long stories.", f"Write a long story about {words(40, seed)}.")
    reply = await ask(target, prompt, 128)
    return {"decode_tok_s": reply.decode_rate, "ttft_s": reply.ttft}


async def batch8(target: Target, seed: int) -> Figures:
    began = time.perf_counter()
    prompts = [f"Write a long story about {words(120, seed * 100 + i)}." for i in range(8)]
    replies = await asyncio.gather(*(ask(target, conversation("You write long stories.", p), 64) for p in prompts))
    wall = time.perf_counter() - began
    return {
        "output_tok_s": sum(r.completion_tokens for r in replies) / wall,
        "ttft_p50_s": statistics.median(r.ttft for r in replies),
        "wall_s": wall,
    }


async def shared(target: Target, seed: int) -> Figures:
    system = "You are an assistant. Reference: " + words(900, 7000 + seed)
    questions = [f"Question {i}: tell me about {words(6, seed * 10 + i)}." for i in range(8)]
    began = time.perf_counter()
    replies = await asyncio.gather(*(ask(target, conversation(system, q), 24) for q in questions))
    wall = time.perf_counter() - began
    return {"wall_s": wall, "ttft_p50_s": statistics.median(r.ttft for r in replies)}


async def turns(target: Target, seed: int) -> Figures:
    messages = [{"role": "system", "content": "You are terse. " + words(300, seed)}]
    ttfts = []
    for turn in range(6):
        messages.append({"role": "user", "content": f"Turn {turn}: {words(20, seed * 10 + turn)}"})
        reply = await ask(target, messages, 24)
        ttfts.append(reply.ttft)
        messages.append({"role": "assistant", "content": reply.text})
    return {"later_ttft_s": statistics.median(ttfts[1:]), "first_ttft_s": ttfts[0]}


async def stall(target: Target, seed: int) -> Figures:
    story = conversation("You write long stories.", f"Write a very long story about {words(30, seed)}.")
    begun = asyncio.Event()
    reading = asyncio.create_task(ask(target, story, 200, begun))
    reading.add_done_callback(lambda _task: begun.set())  # also when it fails
    await begun.wait()
    await asyncio.sleep(0.1)
    began = time.perf_counter()
    long = await ask(target, conversation("Summarise.", words(1800, 900 + seed)), 8)
    ended = time.perf_counter()
    arrivals = (await reading).arrivals
    gaps = [b - a for a, b in itertools.pairwise(arrivals) if began <= b <= ended + 0.2]
    if arrivals[-1] < began + long.ttft:
        raise RuntimeError("the reader's answer ended before the long prompt was computed: nothing was seen")
    return {"longest_gap_s": max(gaps), "long_ttft_s": long.ttft}


async def copy(target: Target, seed: int) -> Figures:
    text = words(90, 40 + seed)
    prompt = conversation("You repeat text exactly.", f"Repeat this text exactly, word for word:\n{text}\n")
    return {"decode_tok_s": (await ask(target, prompt, 128)).decode_rate}


WORKLOADS: dict[str, Callable[[Target, int], Awaitable[Figures]]] = {
    "single": single,
    "batch8": batch8,
    "shared": shared,
    "turns": turns,
    "stall": stall,
    "copy": copy,
}


async def measure(url: str, model: str, names: list[str], rounds: int, extra: dict[str, Any]) -> dict[str, Figures]:
    """Medians over `rounds` of each workload, after one short warm-up answer."""
    out: dict[str, Figures] = {}
    limits = httpx2.Limits(max_connections=64, max_keepalive_connections=0)
    async with httpx2.AsyncClient(limits=limits, timeout=600, trust_env=False) as client:
        target = Target(client, url, model, extra)
        await ask(target, conversation("hi", "hi"), 4)
        for name in names:
            figures = [await WORKLOADS[name](target, seed + 1) for seed in range(rounds)]
            out[name] = {key: statistics.median(f[key] for f in figures) for key in figures[0]}
    return out
