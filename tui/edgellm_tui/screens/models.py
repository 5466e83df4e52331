"""Choosing a model: what is here, then what can be fetched. It stays usable while something is being fetched."""

from __future__ import annotations

from collections.abc import Sequence

from textual.content import Content
from textual.widgets.option_list import Option

from edgellm.errors import EdgeError
from edgellm.inert import label
from edgellm.library.pull import PullProgress
from edgellm.units import number, parameters, size
from edgellm_tui.bridge import Bridge, Model
from edgellm_tui.messages import PullAsked
from edgellm_tui.screens.chooser import Chooser

_NAME = 24


class ModelScreen(Chooser):
    """Dismissed with the name of a model that is here."""

    TITLE_TEXT = "models"
    HINT = "enter chooses, or fetches what is not here yet · esc back"

    def __init__(self, bridge: Bridge, current: str) -> None:
        super().__init__()
        self._bridge = bridge
        self._current = current
        self._models: list[Model] | None = None
        self._pulling: dict[str, str] = {}  # name -> how far

    async def options(self, words: str) -> Sequence[Option]:
        if self._models is None:
            try:
                self._models = await self._bridge.models()
            except EdgeError as error:
                self._models = []
                self.say(error.message)
        wanted = words.lower().split()
        models = [m for m in self._models if all(word in f"{m.name} {m.title}".lower() for word in wanted)]
        here = [self._row(model) for model in models if model.here]
        others = [self._row(model) for model in models if not model.here]
        heading = [Option(Content("can be fetched"), disabled=True)] if others and here else []
        return [*here, *heading, *others] or [Option(Content("no such model"), disabled=True)]

    def choose(self, id: str) -> None:
        model = next((each for each in self._models or () if each.name == id), None)
        if model is None:
            return
        if model.here:
            self.dismiss(model.name)
        else:
            self.say(f"fetching {model.name}; you can go on meanwhile")
            self.app.post_message(PullAsked(model.name))

    async def pull_moved(self, name: str, progress: PullProgress) -> None:
        """How far a pull is."""
        self._pulling[name] = f"{100 * progress.done // progress.total} %" if progress.total else "…"
        await self.fill()

    async def pull_ended(self, name: str, error: str) -> None:
        """It is here, or why not."""
        self._pulling.pop(name, None)
        self._models = None
        self.say(label(error, 400) if error else f"{name} is here now")
        await self.fill()

    def _row(self, model: Model) -> Option:
        facts = [
            self._note(model),
            parameters(model.parameters) if model.parameters else "",
            model.quantization,
            size(model.size) if model.size else "",
            f"{number(model.context)} tokens" if model.context else "",
        ]
        mark = "▌" if model.name == self._current else " "
        return Option(
            Content.assemble(
                (mark, "$text-primary"),
                (label(model.name, _NAME).ljust(_NAME + 1), "bold" if model.here else ""),
                (" · ".join(fact for fact in facts if fact), "$foreground 60%"),
            ),
            id=model.name,
        )

    def _note(self, model: Model) -> str:
        if model.name in self._pulling:
            return f"fetching {self._pulling[model.name]}"
        if model.loaded:
            return "loaded"
        return "" if model.chats else "continues text"
