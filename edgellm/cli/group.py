"""What all commands together do that typer would do otherwise. Imported by `edgellm --help`: nothing heavy here."""

from __future__ import annotations

from typing import Any

from typer.core import TyperGroup

from edgellm.cli.terminal import PipeClosed


class Commands(TyperGroup):
    """The group of all commands; it keeps typer from taking a closed pipe for a failure of its own.

    What is no command is told in our words, and nothing is suggested that is not near.
    """

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        word = args[0]
        if word not in self.commands and not word.startswith("-") and not ctx.resilient_parsing:
            from edgellm.cli.mistakes import no_command

            raise no_command(word, self.commands)
        return super().resolve_command(ctx, args)

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except BrokenPipeError as error:
            raise PipeClosed from error
