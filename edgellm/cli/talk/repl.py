"""A message in, an answer out, until the user leaves."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

from edgellm import slash
from edgellm.cli.answer import Turn, ask, engine_of, footer
from edgellm.cli.output import Output
from edgellm.cli.talk.commands import ALIASES, COMMANDS, Leave, execute
from edgellm.cli.talk.conversation import Conversation
from edgellm.cli.talk.keyboard import Keyboard
from edgellm.client import DaemonClient, DaemonGone
from edgellm.errors import ContextExceeded, DaemonError, EdgeError, InvalidRequest, Unavailable
from edgellm.inert import label
from edgellm.mentions import missing, with_files

_HINT = "Ask something, or /help"


def converse(
    client: DaemonClient,
    conversation: Conversation,
    output: Output,
    connect: Callable[[], DaemonClient],
    history: Path,
    *,
    markdown: bool,
) -> None:
    """Hold a conversation. It outlives its daemon: `connect` finds or starts another for the question after."""
    output.note(f"{conversation.name}. /help lists commands, Ctrl+C stops an answer, Ctrl+D leaves.")
    if not conversation.chats:
        output.note("It has no chat template: it continues your text, and remembers nothing.")
    Loop(client, conversation, output, connect, markdown).run(Keyboard(history, [*COMMANDS, *ALIASES]))


class Loop:
    """The conversation's state between two messages."""

    def __init__(
        self,
        client: DaemonClient,
        conversation: Conversation,
        output: Output,
        connect: Callable[[], DaemonClient],
        markdown: bool,
    ) -> None:
        self._client = client
        self._conversation = conversation
        self._output = output
        self._connect = connect
        self._markdown = markdown
        self._gone = False  # the daemon

    def run(self, keyboard: Keyboard) -> None:
        hint = _HINT
        while True:
            try:
                text = keyboard.read(hint)
                hint = ""
                self._message(text)
            except KeyboardInterrupt:
                self._output.note("Ctrl+D or /bye leaves.")
            except EOFError:
                sys.stderr.write("\n")
                return
            except Leave:
                return

    def _message(self, text: str) -> None:
        question: str | None = text
        if (command := slash.split(text)) is not None:
            try:
                question = execute(*command, self._conversation, self._output)
            except InvalidRequest as error:
                self._output.error(error)
                return
        else:
            question = self._whole(text)
        if question and question.strip():
            self._conversation.answered(question, self._answer(question))
            self._output.note("")

    def _whole(self, text: str) -> str | None:
        """What was typed, with the files it names; None where one of them cannot go along."""
        try:
            whole = with_files(text)
        except InvalidRequest as error:
            self._output.error(error)
            return None
        for name in missing(text):
            self._output.note(
                f"there is no file {label(name, 60)}; the question goes without it, Ctrl+C stops the answer"
            )
        return whole

    def _answer(self, question: str) -> str:
        """The answer as far as it came, empty when there is none. Raises what a new question cannot mend."""
        turn = Turn()
        try:
            self._ask(question, turn)
            self._output.footer(footer(turn, engine_of(self._client, self._conversation.name)))
        except KeyboardInterrupt:
            self._output.note("(stopped)")
        except (DaemonError, Unavailable) as error:
            if not error.retriable:
                raise
            self._output.error(error)
            self._gone = error.code == DaemonGone.code
            return ""
        except EdgeError as error:
            self._output.error(error)
            if isinstance(error, ContextExceeded) and self._conversation.messages:
                self._output.note("/clear begins anew.")
            return ""
        return turn.text

    def _ask(self, question: str, turn: Turn) -> None:
        """Fill `turn`. A daemon that has left since the last answer (it does when idle) is replaced, once."""
        fresh = self._gone
        if fresh:
            self._reconnect()
        request = self._conversation.request(question)
        try:
            ask(self._client, request, self._output, turn, markdown=self._markdown)
        except EdgeError as error:
            if error.code != DaemonGone.code or fresh or turn != Turn():
                raise
            self._reconnect()
            ask(self._client, request, self._output, turn, markdown=self._markdown)

    def _reconnect(self) -> None:
        self._gone = True  # should there be no other
        self._client.close()
        self._client, self._gone = self._connect(), False
