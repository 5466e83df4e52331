"""`edgellm doctor --kernels`: what computes each operation of every engine, as far as they say, and why."""

from __future__ import annotations

import msgspec

from edgellm import plugins
from edgellm.cli.output import Output
from edgellm.contracts.engine import Unavailable
from edgellm.contracts.kernels import KernelReport


def explain(*, json: bool) -> None:
    """Print the choices of every engine; of one that has none to make, that it brings its own."""
    output = Output(json=json)
    found = {name: plugins.kernels(name) for name in plugins.engine_names()}
    if json:
        told = {name: msgspec.to_builtins(report) for name, report in found.items() if report is not None}
        output.document({"kernels": told})
        return
    for name, report in found.items():
        _print(plugins.title(name), report, output)
    if not found:
        output.sentence("No engine is installed, so nothing is computed.")


def _print(title: str, report: KernelReport | Unavailable | None, output: Output) -> None:
    if report is None:
        output.sentence(f"{title}: brings its own, and does not choose among them")
        return
    if isinstance(report, Unavailable):
        output.sentence(f"{title}: not available: {report.reason}")
        output.sentence(f"  mend: {report.hint}")
        return
    output.line(f"{title} on {report.device}")
    rows: dict[str, str] = {}
    for choice in report.choices:
        why_not = "".join(f"; not {name}: {why}" for name, why in choice.refused)
        rows[choice.op] = f"{choice.implementation}: {choice.reason}{why_not}"
    output.pairs(rows)
