"""Many clients that leave when they like, and a worker that is killed again and again, against one daemon.

usage: flood.py MODEL.gguf [--seconds 60 | --requests N] [--clients 100] [--kill-every 15] [--threads N]
       [--queue 64] [--capacity TOKENS] [--patience 90] [--seed 1] [--json FILE]

Every request must end in an answer, in an honest refusal (429 or 503, retriable, with Retry-After), or because the
client itself left; /health must answer all the while; afterwards the daemon holds no more descriptors, threads and KV
cells than before. A small --capacity makes requests give way to each other. The exit code is 1 where something of that
does not hold. What clients do is drawn from the seed; when they do it is not.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import os
import random
import signal
import statistics
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import psutil
import servers
from compare import commit, device

SETTLE_S = 300.0  # for what runs at the end to finish
HEALTH_S = 30.0  # /health answers within that even on a machine that is busy with other things
GROWTH_MIB = 32  # of the daemon's memory is no leak: allocators keep some
LEAVES = 0.3  # of the clients go before their answer is whole
RETRIABLE = ("worker_died", "overloaded", "unavailable")
REFUSALS = {429: "refused: 429", 503: "refused: 503"}
HONEST = ("answered", "left", *REFUSALS.values(), "broke off, retriably")
WORDS = ("the", "sky", "is", "blue", "and", "water", "falls", "down", "from", "grey", "clouds", "in", "spring")


class Outcomes:
    """What came of the requests; times to the first byte, seconds."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self.first_s: list[float] = []
        self.odd: list[str] = []

    def add(self, outcome: str, detail: str = "") -> None:
        self.counts[outcome] += 1
        if outcome not in HONEST:
            self.odd.append(f"{outcome}: {detail}"[:300])


class Watch:
    """What /health said and how long that took, and what the model's own figures summed up to."""

    def __init__(self) -> None:
        self.states: Counter[str] = Counter()
        self.slowest_s = 0.0
        self.suspended = 0  # over all workers
        self._before = 0

    async def look(self, http: httpx2.AsyncClient) -> None:
        """Ask for ever; raises where the answer is late or no answer."""
        while True:
            began = time.monotonic()
            found = (await http.get("/health", timeout=HEALTH_S)).json()
            self.slowest_s = max(self.slowest_s, time.monotonic() - began)
            self.states[found["status"]] += 1
            now = (await loaded(http))["suspended"]
            self.suspended += now - self._before if now >= self._before else now
            self._before = now
            await asyncio.sleep(0.25)


async def client(
    http: httpx2.AsyncClient,
    model: str,
    dice: random.Random,
    numbers: Iterator[int],
    until: float,
    patience_s: float,
    found: Outcomes,
) -> None:
    """Ask until time or numbers are up. A refusal is taken seriously, but for no longer than a second."""
    while time.monotonic() < until and next(numbers, None) is not None:
        words = dice.choices(WORDS, k=dice.choice((4, 12, 40, 200)))
        body = {
            "model": model,
            "messages": [{"role": "user", "content": " ".join(words)}],
            "max_tokens": dice.randint(1, 24),
            "stream": dice.random() < 0.7,
            "priority": dice.choice((-1, 0, 0, 10)),
        }
        leave_s = dice.expovariate(0.5) if dice.random() < LEAVES else None
        try:
            async with asyncio.timeout(patience_s if leave_s is None else leave_s):
                wait_s = await ask(http, body, found)
        except TimeoutError:
            found.add("hung" if leave_s is None else "left")
            wait_s = 0.0
        except httpx2.HTTPError as error:
            found.add("connection lost", repr(error))
            wait_s = 0.2
        await asyncio.sleep(min(wait_s, 1.0))


async def ask(http: httpx2.AsyncClient, body: dict[str, Any], found: Outcomes) -> float:
    """One request to its end; how long the server says to wait before the next, seconds."""
    began = time.monotonic()
    async with http.stream("POST", "/v1/chat/completions", json=body) as response:
        text = ""
        async for part in response.aiter_text():
            if not text:
                first_s = time.monotonic() - began
            text += part
    status = response.status_code
    if status in REFUSALS:
        wait_s = response.headers.get("retry-after")
        # A worker that died is started again at once: its requests may be sent again without waiting.
        honest = wait_s is not None or (status == 503 and '"worker_died"' in text)
        found.add(REFUSALS[status] if honest else f"{status} without Retry-After", text)
        return float(wait_s or 0.1)
    if status != 200:
        found.add(f"status {status}", text)
    elif any(f'"code":"{code}"' in text for code in RETRIABLE):  # the status was out already: see `hold_s`
        found.add("broke off, retriably")
    elif '"error"' in text or (body["stream"] and not text.endswith("data: [DONE]\n\n")):
        found.add("broke off", text[-300:])
    else:
        found.add("answered")
        found.first_s.append(first_s)
    return 0.0


class State:
    """What the daemon and its worker hold now."""

    def __init__(self, server: servers.Server, model: dict[str, Any]) -> None:
        daemon, worker = psutil.Process(server.pid), psutil.Process(model["pid"])
        self.figures = {
            "daemon: descriptors": daemon.num_fds(),
            "daemon: threads": daemon.num_threads(),
            "daemon: RSS, MiB": daemon.memory_info().rss >> 20,
            "worker: descriptors": worker.num_fds(),
            "worker: threads": worker.num_threads(),
            "worker: RSS, MiB": worker.memory_info().rss >> 20,
            "processes": 1 + len(daemon.children(recursive=True)),
            "requests running or waiting": model["running"] + model["waiting"],
            "KV cells used": model["kv_used"],
        }


async def loaded(http: httpx2.AsyncClient) -> dict[str, Any]:
    found: dict[str, Any] = (await http.get("/edgellm/v1/ps")).json()["models"][0]
    return found


async def at_rest(http: httpx2.AsyncClient, server: servers.Server) -> State:
    """The state once nothing runs: one plain question is asked, so that the cache holds the same each time."""
    deadline = time.monotonic() + SETTLE_S
    while (model := await loaded(http))["running"] + model["waiting"] and time.monotonic() < deadline:
        await asyncio.sleep(0.2)
    body = {"model": server.model, "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 4, "temperature": 0}
    while (await http.post("/v1/chat/completions", json=body)).status_code != 200 and time.monotonic() < deadline:
        await asyncio.sleep(0.5)
    await asyncio.sleep(2.5)  # two heartbeats, and the last connections close
    return State(server, await loaded(http))


async def kill_workers(http: httpx2.AsyncClient, every_s: float, until: float) -> int:
    """kill -9 the worker again and again, leaving time after the last one; how often."""
    killed = 0
    with_time_after = until - every_s
    try:
        while time.monotonic() < with_time_after:
            await asyncio.sleep(every_s)
            pid = (await loaded(http))["pid"]
            if pid is not None:
                os.kill(pid, signal.SIGKILL)
                killed += 1
    except asyncio.CancelledError:  # all requests are made
        pass
    return killed


async def flood(server: servers.Server, options: argparse.Namespace) -> dict[str, Any]:
    found, watch = Outcomes(), Watch()
    limits = httpx2.Limits(max_connections=None, max_keepalive_connections=options.clients)
    async with httpx2.AsyncClient(base_url=server.url, trust_env=False, timeout=60) as alone:
        async with httpx2.AsyncClient(
            base_url=server.url, trust_env=False, timeout=options.patience, limits=limits
        ) as http:
            # The first second of load grows pools that stay: it is no leak.
            await asyncio.gather(*(ask(http, _warm(server.model), Outcomes()) for _ in range(options.clients)))
        before = await at_rest(alone, server)
        began = time.monotonic()
        until = began + (options.seconds if options.requests is None else 3600)
        numbers = iter(itertools.count() if options.requests is None else range(options.requests))
        looking = asyncio.create_task(watch.look(alone))
        killing = asyncio.create_task(kill_workers(alone, options.kill_every, until))
        async with httpx2.AsyncClient(
            base_url=server.url, trust_env=False, timeout=options.patience, limits=limits
        ) as http:
            await asyncio.gather(
                *(
                    client(
                        http,
                        server.model,
                        random.Random(f"{options.seed}/{number}"),
                        numbers,
                        until,
                        options.patience,
                        found,
                    )
                    for number in range(options.clients)
                )
            )
        took = time.monotonic() - began
        killing.cancel()
        killed = await killing
        if looking.done():
            found.add("/health failed", repr(looking.exception()))
        looking.cancel()
        await asyncio.wait([looking])
        after = await at_rest(alone, server)
    figures = {"killed": killed, "seconds": round(took, 1), "suspensions": watch.suspended}
    health = {"slowest /health, s": round(watch.slowest_s, 3), "states": dict(watch.states)}
    return {"found": found, "before": before.figures, "after": after.figures} | figures | health


def _warm(model: str) -> dict[str, Any]:
    return {"model": model, "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 1, "stream": True}


def report(result: dict[str, Any]) -> bool:
    """Print the tables; whether all held."""
    found: Outcomes = result["found"]
    print(f"\n{sum(found.counts.values())} requests in {result['seconds']} s, {result['killed']} workers killed\n")
    for outcome, count in found.counts.most_common():
        print(f"  {outcome:32} {count:8}")
    if len(found.first_s) > 1:
        print(f"  {'first byte, median s':32} {statistics.median(found.first_s):8.2f}")
        print(f"  {'first byte, 99th percentile s':32} {statistics.quantiles(found.first_s, n=100)[-1]:8.2f}")
    print(f"  {'gave way to others':32} {result['suspensions']:8}")
    print(f"  {'slowest /health, s':32} {result['slowest /health, s']:8.2f}   said {result['states']}")
    print(f"\n  {'at rest':32} {'before':>8} {'after':>8}")
    for name, value in result["before"].items():
        print(f"  {name:32} {value:8} {result['after'][name]:8}")
    for line in found.odd[:10]:
        print(f"  ! {line}")
    return not found.odd and not _grown(result["before"], result["after"])


def _grown(before: dict[str, int], after: dict[str, int]) -> list[str]:
    """What did not come back. A worker's memory is for people to judge: another process, with caches of its own."""
    allowed = {"daemon: RSS, MiB": GROWTH_MIB, "worker: RSS, MiB": sys.maxsize}
    grown = [name for name in before if after[name] > before[name] + allowed.get(name, 0)]
    for name in grown:
        print(f"  ! {name} did not come back: {before[name]} -> {after[name]}")
    return grown


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--requests", type=int, help="so many in all, instead of --seconds")
    parser.add_argument("--clients", type=int, default=100)
    parser.add_argument("--kill-every", type=float, default=15)
    parser.add_argument("--threads", type=int, default=0)
    parser.add_argument("--queue", type=int, default=64)
    parser.add_argument("--capacity", type=int, default=servers.CONTEXT, help="KV tokens over all requests")
    parser.add_argument("--patience", type=float, default=90, help="seconds after which a request counts as hung")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    settings = {"EDGELLM_QUEUE_REQUESTS": str(options.queue), "EDGELLM_CAPACITY": str(options.capacity)}
    if options.capacity < servers.CONTEXT:
        settings["EDGELLM_CONTEXT"] = str(options.capacity // 2)
    with servers.edgellm(options.model, options.threads, settings) as server:
        result = asyncio.run(flood(server, options))
    held = report(result)
    if options.json:
        found: Outcomes = result.pop("found")
        row = {"device": device(), "commit": commit(), "model": options.model.name, "clients": options.clients}
        options.json.write_text(json.dumps(row | {"outcomes": found.counts} | result, indent=1) + "\n")
    return 0 if held else 1


if __name__ == "__main__":
    sys.exit(main())
