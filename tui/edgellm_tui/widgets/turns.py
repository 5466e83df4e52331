"""One message of a conversation on the screen: what was asked, and what was answered."""

from __future__ import annotations

from textual.app import ComposeResult
from textual.containers import Vertical
from textual.content import Content
from textual.widgets import Label, Static

from edgellm.contracts.events import Progress
from edgellm.inert import inert, label
from edgellm_tui.markdown.answer import AnswerText
from edgellm_tui.records import Turn
from edgellm_tui.widgets.thought import Thought

SHOWN_LINES = 40  # of a question; what was pasted is not what one comes back to read
SHOWN_CHARACTERS = 4000
_WORDS = {"load": "loading the model", "prefill": "reading the prompt"}


class Question(Vertical):
    """What the user said, as it was said."""

    def __init__(self, turn: Turn) -> None:
        super().__init__()
        self.turn = turn

    def compose(self) -> ComposeResult:
        yield Label("you", classes="who")
        yield Static(Content(shortened(self.turn.text)), classes="said")


def shortened(text: str) -> str:
    """The beginning of a text, inert, and how much more there is."""
    lines = inert(text.strip("\n")).split("\n")
    shown = "\n".join(lines[:SHOWN_LINES])
    rest = len(lines) - SHOWN_LINES
    if len(shown) > SHOWN_CHARACTERS:
        return f"{shown[:SHOWN_CHARACTERS]}…\n({len(text):,} characters)"
    return f"{shown}\n… {rest:,} more lines" if rest > 0 else shown


class Reply(Vertical):
    """An answer: who gives it, what it thought, its text, and how it went."""

    def __init__(self, turn: Turn) -> None:
        super().__init__()
        self.turn = turn
        self._written = ""
        self._broken = turn.state == "failed"

    def compose(self) -> ComposeResult:
        yield Label(Content(label(self.turn.model, 60) or "answer"), classes="who")
        yield Thought(self.turn.thought, self.turn.thought_s)
        yield AnswerText(self.turn.text)
        yield Label("", classes="status")

    @property
    def text(self) -> str:
        """The answer as the model wrote it, as far as it has come."""
        return self.turn.text or self._written

    @property
    def broken(self) -> bool:
        """It failed or was interrupted: it can be tried again."""
        return self._broken

    def on_mount(self) -> None:
        self._settle()

    def move(self, progress: Progress | None) -> None:
        """Say what happens before text comes."""
        self._say(told(progress))

    async def grow(self, text: str, thought: str, thought_s: float) -> None:
        """More of it."""
        if thought:
            self.query_one(Thought).grow(thought, thought_s)
        if text:
            self.query_one(Thought).fold()
            self._say("")
            self._written += text
            await self.query_one(AnswerText).write(text)

    async def end(self, turn: Turn) -> None:
        """It is as it will stay."""
        self.turn = turn
        await self.query_one(AnswerText).finish()
        self._settle()

    def _settle(self) -> None:
        turn = self.turn
        self._broken = turn.state == "failed"
        self.query_one(AnswerText).display = bool(turn.text) or turn.state == "writing"
        if turn.state == "done":
            self._say(str(turn.figures) if turn.figures else "")
        elif turn.state == "stopped":
            self._say("stopped" if turn.text else "stopped before it began")
        elif turn.state == "failed":
            self._say(f"✗ {turn.error}\nenter asks again", failed=True)
        else:
            self._say("")

    def interrupted(self) -> None:
        """It was being written when its program ended."""
        if self.turn.state == "writing":
            self._broken = True
            self.query_one(AnswerText).display = bool(self.turn.text)
            self._say("✗ interrupted: edgellm ended while this was written\nenter asks again", failed=True)

    def _say(self, text: str, failed: bool = False) -> None:
        status = self.query_one(".status", Label)
        status.set_class(failed, "failed")
        status.update(Content(inert(text)))
        status.display = bool(text)


def told(progress: Progress | None) -> str:
    """Work before the first text, in words."""
    if progress is None:
        return "…"
    if progress.stage == "queue":
        return f"waiting: {progress.total:.0f} ahead"
    share = progress.done / progress.total if progress.total else 0.0
    return f"{_WORDS[progress.stage]} … {100 * min(1.0, share):.0f} %"
