"""Decode beside programs that keep CPUs busy. usage: neighbours.py MODEL.gguf [--threads N] [--rounds N] [--before DIR]

Tokens per second of one answer of 128 tokens beside 0, 1, 2 and 5 busy processes, and beside none again. With --before,
another checkout of edgellm answers by turns with this one, so that a machine that drifts shows on both.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import httpx2
import servers
from workloads import Target, ask, conversation, single

BUSY = (0, 1, 2, 5, 0)
SETTLE_S = 1.0  # neighbours are there, or gone, for a moment before a question comes


@contextlib.contextmanager
def neighbours(count: int) -> Iterator[None]:
    """So many processes that do nothing but keep a CPU."""
    running = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count)]
    try:
        time.sleep(SETTLE_S)
        yield
    finally:
        for process in running:
            process.kill()
            process.wait()


async def decode(server: servers.Server, seed: int) -> float:
    async with httpx2.AsyncClient(timeout=600, trust_env=False) as client:
        return (await single(Target(client, server.url, server.model, {}), seed))["decode_tok_s"]


async def load(server: servers.Server) -> None:
    async with httpx2.AsyncClient(timeout=600, trust_env=False) as client:
        await ask(Target(client, server.url, server.model, {}), conversation("hi", "hi"), 64)


def checkout(folder: Path) -> str:
    """Where Python finds that checkout's packages."""
    return os.pathsep.join(str(folder / part) for part in ("", "backends", "kernels", "tui"))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("model", type=Path)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--before", type=Path)
    options = parser.parse_args()
    folders = {"now": Path(__file__).parents[1]} | ({"before": options.before.absolute()} if options.before else {})
    figures: dict[tuple[str, int], list[float]] = {}
    with contextlib.ExitStack() as stack:
        running = {}
        for name, folder in folders.items():
            settings = {"EDGELLM_DRAFTS": "off", "PYTHONPATH": checkout(folder)}
            running[name] = stack.enter_context(servers.edgellm(options.model.absolute(), options.threads, settings))
            asyncio.run(load(running[name]))
        for turn in range(options.rounds):
            for place, count in enumerate(BUSY):
                with neighbours(count):
                    for name, server in running.items():
                        figures.setdefault((name, place), []).append(asyncio.run(decode(server, 10 * turn + place)))
    for place, count in enumerate(BUSY):
        for name in folders:
            rates = figures[name, place]
            each = ", ".join(f"{rate:.0f}" for rate in rates)
            print(f"beside {count}, {name:6}: {statistics.median(rates):6.1f} tok/s ({each})")


if __name__ == "__main__":
    main()
