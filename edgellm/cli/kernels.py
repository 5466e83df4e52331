"""`edgellm doctor --kernels`: what computes each operation of the engines that choose among kernels, and why."""

from __future__ import annotations

import msgspec

from edgellm import plugins
from edgellm.cli.output import Output
from edgellm.contracts.engine import Unavailable
from edgellm.contracts.kernels import KernelReport


def explain(*, json: bool) -> None:
    """Print the choices of every engine that has some to make."""
    output = Output(json=json)
    found = {name: report for name in plugins.engine_names() if (report := plugins.kernels(name)) is not None}
    if json:
        output.document({"kernels": {name: msgspec.to_builtins(report) for name, report in found.items()}})
        return
    for name, report in found.items():
        _print(plugins.title(name), report, output)
    if not found:
        output.line("No engine here chooses among kernels: llama.cpp brings its own.")


def _print(title: str, report: KernelReport | Unavailable, output: Output) -> None:
    if isinstance(report, Unavailable):
        output.line(f"{title}: not available: {report.reason}")
        output.line(f"  mend: {report.hint}")
        return
    output.line(f"{title} on {report.device}")
    rows: dict[str, str] = {}
    for choice in report.choices:
        why_not = "".join(f"; not {name}: {why}" for name, why in choice.refused)
        rows[choice.op] = f"{choice.implementation}: {choice.reason}{why_not}"
    output.pairs(rows)
