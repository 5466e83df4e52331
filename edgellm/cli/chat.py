"""A plain conversation: a line in, an answer out, until Ctrl+D."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable

import msgspec

from edgellm.cli.answer import Turn, ask, footer
from edgellm.cli.output import Output
from edgellm.client import DaemonClient, DaemonGone
from edgellm.contracts.request import GenerateRequest, Message, Messages, Text
from edgellm.errors import DaemonError, EdgeError, Unavailable
from edgellm.library.manifest import Manifest

PROMPT = "> "
LEAVE = frozenset({"/bye", "/exit", "/quit"})
HELP = frozenset({"/help", "/?"})


def converse(
    client: DaemonClient,
    base: GenerateRequest,
    system: str | None,
    manifest: Manifest,
    output: Output,
    connect: Callable[[], DaemonClient],
) -> None:
    """Ask line by line; the conversation so far goes along. `base` holds all of a request but the prompt.

    The conversation outlives its daemon: `connect` finds or starts another for the question after the one that failed.

    Ctrl+C stops an answer, which stays part of the conversation as far as it came; at the prompt it leaves with 130.
    """
    with contextlib.suppress(ImportError):
        import readline  # noqa: F401 - line editing and history in input(), where the system has it
    chats = manifest.summary.has_chat_template
    _greet(manifest, output)
    messages = [Message("system", system)] if system else []
    gone = False
    while (line := _read()) is not None:
        if not line.strip():
            continue
        if line.strip() in HELP:
            _greet(manifest, output)
            continue
        messages.append(Message("user", line))
        prompt = Messages(tuple(messages)) if chats else Text(line)
        if gone:
            client.close()
            client = connect()
        answer, gone = _answered(client, msgspec.structs.replace(base, prompt=prompt), output)
        if answer:
            messages.append(Message("assistant", answer))
        else:
            messages.pop()  # it failed: the conversation goes on from before


def _greet(manifest: Manifest, output: Output) -> None:
    output.note(f"{manifest.full_name}. Ctrl+C stops an answer, Ctrl+D or /bye leaves.")
    if not manifest.summary.has_chat_template:
        output.note("It has no chat template: it continues your text, and remembers nothing.")


def _read() -> str | None:
    """The next line; None when the user leaves. The shell's prompt then begins on a line of its own."""
    try:
        line = input(PROMPT)
    except EOFError:
        sys.stdout.write("\n")
        return None
    except KeyboardInterrupt:
        sys.stdout.write("\n")
        raise
    return None if line.strip() in LEAVE else line


def _answered(client: DaemonClient, request: GenerateRequest, output: Output) -> tuple[str, bool]:
    """The answer as far as it came, empty when there is none; and whether the daemon is gone.

    Raises what a new question cannot mend.
    """
    turn = Turn()
    try:
        ask(client, request, output, turn)
        output.footer(footer(turn))
    except KeyboardInterrupt:
        output.note("(stopped)")
    except (DaemonError, Unavailable) as error:
        if error.retriable:
            output.error(error)
            return "", error.code == DaemonGone.code
        raise
    except EdgeError as error:
        output.error(error)
        return "", False
    return turn.text, False
