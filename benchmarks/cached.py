"""Does a decode pay for other conversations that are kept? usage: cached.py MODEL.gguf [--threads N] [--rounds N]

Decode speed of one answer on a fresh server, then again with sixteen other conversations of about a thousand tokens
each in its cache, then again on another fresh server, so that a machine that drifts shows.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
from pathlib import Path

import httpx2
import servers
from workloads import Target, ask, conversation, single, words

CHATS, WORDS = 16, 640


async def fill(server: servers.Server) -> int:
    """Sixteen conversations; returns their prompt tokens, roughly one and a half per word."""
    async with httpx2.AsyncClient(timeout=600, trust_env=False) as client:
        target = Target(client, server.url, server.model, {})
        for chat in range(CHATS):
            await ask(target, conversation("You are terse.", words(WORDS, 5000 + chat)), 4)
    return CHATS * WORDS * 3 // 2


async def decode(server: servers.Server, rounds: int, seed: int) -> float:
    async with httpx2.AsyncClient(timeout=600, trust_env=False) as client:
        target = Target(client, server.url, server.model, {})
        await ask(target, conversation("hi", "hi"), 4)
        return statistics.median([(await single(target, seed + i))["decode_tok_s"] for i in range(rounds)])


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("model", type=Path)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    with servers.edgellm(options.model.absolute(), options.threads, {"EDGELLM_DRAFTS": "off"}) as server:
        empty = asyncio.run(decode(server, options.rounds, 1))
        tokens = asyncio.run(fill(server))
        full = asyncio.run(decode(server, options.rounds, 100))
    with servers.edgellm(options.model.absolute(), options.threads, {"EDGELLM_DRAFTS": "off"}) as server:
        again = asyncio.run(decode(server, options.rounds, 1))
    print(f"empty {empty:.1f}, with about {tokens:,} tokens of others {full:.1f}, empty again {again:.1f} tok/s")
    print(f"ratio {full / statistics.mean([empty, again]):.3f}")


if __name__ == "__main__":
    main()
