"""What is shown before anything was said: it teaches the first keys, and lies over nothing."""

from __future__ import annotations

from textual.app import ComposeResult
from textual.containers import Vertical
from textual.content import Content
from textual.widgets import Label, ProgressBar, Static

from edgellm.inert import label
from edgellm.library.pull import PullProgress
from edgellm.units import size
from edgellm_tui.bridge import Model
from edgellm_tui.markdown.blocks import Outline

_STAGES = {"resolve": "looking for it", "download": "downloading", "verify": "verifying", "copy": "copying"}
KEYS = (
    ("enter", "sends; ctrl+j begins a new line"),
    ("ctrl+o", "another model"),
    ("ctrl+r", "earlier conversations"),
    ("ctrl+n", "a new conversation"),
    ("f1", "all keys"),
)


class Empty(Vertical):
    """A model is here: say so, and how to begin."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self._model = model

    def compose(self) -> ComposeResult:
        model = self._model
        facts = [model.quantization, size(model.size) if model.size else "", model.licence]
        yield Label(Content(f"{label(model.title, 50)}"), classes="title")
        yield Label(Content(" · ".join(label(fact, 30) for fact in facts if fact)), classes="facts")
        yield Label(Content("It runs on this computer. What you write stays here."), classes="lead")
        if not model.chats:
            yield Label(
                Content("It has no chat template: it continues your text, and remembers nothing."), classes="warn"
            )
        yield Static(Outline([(Content.styled(f"{key:>8}  ", "bold"), Content(meaning)) for key, meaning in KEYS]))


class Offer(Vertical):
    """No model is here: offer one, and show how it comes."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.model = model

    def compose(self) -> ComposeResult:
        model = self.model
        facts = [model.quantization, size(model.size) if model.size else "", model.licence]
        yield Label("Nothing to talk to yet", classes="title")
        yield Label(Content(f"{model.name} · {' · '.join(fact for fact in facts if fact)}"), classes="facts")
        yield Label(
            Content("It is downloaded once and verified; then it works offline, on this computer."), classes="lead"
        )
        yield Label(Content.assemble((" enter", "bold"), "  fetches it"), id="invite")
        yield Label(Content.assemble(("ctrl+o", "bold"), "  shows what else there is"), classes="key")
        bar = ProgressBar(total=model.size, show_eta=False)
        bar.display = False
        yield bar
        yield Label("", id="stage")

    def move(self, progress: PullProgress) -> None:
        """How far it is."""
        bar = self.query_one(ProgressBar)
        bar.display = True
        self.query_one("#invite").display = False
        if progress.total:
            bar.update(total=progress.total, progress=progress.done)
            told = f"{_STAGES.get(progress.stage, progress.stage)} {size(progress.done)} of {size(progress.total)}"
        else:
            told = progress.detail or _STAGES.get(progress.stage, "putting it into the store") + " …"
        self.query_one("#stage", Label).update(Content(label(told)))

    def fail(self, error: str) -> None:
        """Why it did not come."""
        self.query_one(ProgressBar).display = False
        self.query_one("#invite").display = True
        self.query_one("#stage", Label).update(Content(label(error, 600)))
