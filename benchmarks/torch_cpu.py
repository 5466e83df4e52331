"""The torch engine on CPUs beside llama.cpp, on the same file and through the same contract.

usage: torch_cpu.py MODEL.gguf [--threads N] [--steps N] [--rounds N] [--save FILE]

Each engine loads in a process of its own. A prompt is computed in one step; then one sequence, and eight at once, go on
token by token; then one with fifteen guesses that all come true, as far as the engine takes so many. Greedy; medians of
--rounds. Steps of the reference kernels are for checking others by, not for speed: this says how slow they are.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from datetime import date
from pathlib import Path
from typing import Any

from edgellm import plugins
from edgellm.contracts.engine import Placement
from edgellm.contracts.runner import Row, SampleSpec, TokenRunner
from edgellm.formats.gguf import read_model
from edgellm.placement.machine import cpu_name

ENGINES = ("llamacpp", "torch")
PROMPT = 256  # tokens
GREEDY = SampleSpec(temperature=0.0)
GUESSES = 15
UNITS = {
    "load_s": "s to load",
    "prompt": "prompt tok/s",
    "single": "tok/s",
    "batch8": "tok/s, 8 at once",
    "guessed": "tok/s, guessed",
}


def measure(path: Path, engine: str, threads: int, steps: int, rounds: int) -> dict[str, float]:
    """One engine in this process."""
    plugin, model = plugins.engine(engine), read_model(path)
    room = Placement(
        context=1024, capacity=9 * 1024, max_sequences=9, batch_tokens=512, threads=threads, threads_batch=threads
    )
    began = time.perf_counter()
    runner = plugin.load(model, room, lambda _done: None)
    found = {"load_s": time.perf_counter() - began}
    run = _Run(runner, steps)
    run.prompt()  # once for nothing: what is made on first use is made
    for name, work in (("prompt", run.prompt), ("single", run.single), ("batch8", run.batch), ("guessed", run.guessed)):
        found[name] = statistics.median(_rate(work) for _ in range(rounds))
    runner.close()
    return found


def _rate(work: Callable[[], int]) -> float:
    """Tokens per second."""
    began = time.perf_counter()
    tokens = work()
    return tokens / (time.perf_counter() - began)


class _Run:
    """What is timed. Sequence 0 holds the prompt, which the others fork."""

    def __init__(self, runner: TokenRunner, steps: int) -> None:
        self.runner = runner
        self.steps = steps
        self.ids = [1000 + (7919 * n) % 4001 for n in range(PROMPT)]
        self.text: list[int] = []  # what follows

    def prompt(self) -> int:
        self.runner.free(0)
        self._step(Row(0, 0, self.ids[:-1]))
        return PROMPT - 1

    def single(self) -> int:
        self.text = self._decode([1])[0]
        return self.steps

    def batch(self) -> int:
        self._decode(range(1, 9))
        return 8 * self.steps

    def guessed(self) -> int:
        """The text of `single` again, this time known before."""
        self._fork([1])
        most, done, last = min(GUESSES, self.runner.info.draft_tokens), 0, self.ids[-1]
        while done < self.steps:
            guess = self.text[done : min(done + most, self.steps - 1)]
            (tokens,) = self._step(Row(1, PROMPT - 1 + done, [last], GREEDY, done, guess))
            done, last = done + len(tokens), tokens[-1]
        return done

    def _decode(self, sequences: Sequence[int]) -> list[list[int]]:
        self._fork(sequences)
        texts: list[list[int]] = [[self.ids[-1]] for _ in sequences]
        for step in range(self.steps):
            rows = [
                Row(sequence, PROMPT - 1 + step, text[-1:], GREEDY, step)
                for sequence, text in zip(sequences, texts, strict=True)
            ]
            for text, tokens in zip(texts, self._step(*rows), strict=True):
                text.extend(tokens)
        return [text[1:] for text in texts]

    def _fork(self, sequences: Sequence[int]) -> None:
        for sequence in sequences:
            self.runner.free(sequence)
            self.runner.fork(0, sequence, PROMPT - 1)

    def _step(self, *rows: Row) -> list[tuple[int, ...]]:
        return [result.tokens for result in self.runner.collect(self.runner.submit(rows))]


def compare(path: Path, given: argparse.Namespace) -> dict[str, Any]:
    """Each engine in a process of its own: what one library leaves behind is not the other's."""
    results: dict[str, Any] = {}
    for engine in ENGINES:
        steps = given.steps if engine == "torch" else 4 * given.steps
        numbers = [str(number) for number in (given.threads, steps, given.rounds)]
        command = [sys.executable, __file__, str(path), "--engine", engine, "--measure", *numbers]
        done = subprocess.run(command, check=True, capture_output=True, text=True)
        results[engine] = json.loads(done.stdout.splitlines()[-1])
    return results


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    parser.add_argument(
        "--steps", type=int, default=16, help="of decoding, for torch; llama.cpp makes four times as many"
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--save", type=Path, help="append the row to this file")
    parser.add_argument("--engine", choices=ENGINES, help=argparse.SUPPRESS)
    parser.add_argument("--measure", type=int, nargs=3, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.measure:
        print(json.dumps(measure(given.model, given.engine, *given.measure)))
        return
    results = compare(given.model, given)
    print(f"{given.model.name}, {given.threads} threads, prompt of {PROMPT} tokens")
    print("| engine | " + " | ".join(UNITS.values()) + " |")
    print("|---" * (len(UNITS) + 1) + "|")
    for engine, found in results.items():
        print(f"| {plugins.title(engine)} | " + " | ".join(f"{found[name]:.3g}" for name in UNITS) + " |")
    if given.save:
        commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False)
        row = {
            "date": str(date.today()),
            "device": f"{cpu_name()}, {os.cpu_count()} CPUs",
            "commit": commit.stdout.strip(),
            "model": given.model.name,
            "threads": given.threads,
            "rounds": given.rounds,
            "prompt": PROMPT,
            "versions": {engine: getattr(plugins.probe(engine), "version", "") for engine in ENGINES},
            "engines": results,
        }
        with given.save.open("a") as file:
            file.write(json.dumps(row) + "\n")


if __name__ == "__main__":
    main()
