"""Options that several commands share."""

from __future__ import annotations

from typing import Annotated

import typer

Json = Annotated[bool, typer.Option("--json", help="Print one JSON document.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Print data and errors only.")]
ModelName = Annotated[str, typer.Argument(metavar="NAME", help="A model, as `edgellm list` shows it.")]
KeepAlive = Annotated[
    str | None,
    typer.Option(
        "--keep-alive", metavar="TIME", help="How long the model stays loaded after: 300, 5m, 2h, or forever."
    ),
]
Context = Annotated[
    int | None,
    typer.Option("--context", metavar="TOKENS", help="Longest conversation, when the model is loaded."),
]
Engine = Annotated[
    str | None,
    typer.Option("--engine", metavar="NAME", help="What runs the model: llamacpp, torch, or auto."),
]
