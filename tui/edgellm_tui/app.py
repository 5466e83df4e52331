"""The application: what all screens share. Screens and widgets keep their look in stylesheets of their own."""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections.abc import Iterable
from pathlib import Path
from typing import ClassVar

import msgspec
from textual import constants, on
from textual.app import App, SystemCommand
from textual.binding import Binding, BindingType
from textual.driver import Driver
from textual.screen import Screen

from edgellm import slash
from edgellm.config import Settings
from edgellm.errors import UNREADABLE, EdgeError
from edgellm.library.latest import remember
from edgellm.paths import Paths
from edgellm.wishes import Wishes
from edgellm_tui import messages, themes
from edgellm_tui.bridge import Bridge, Model
from edgellm_tui.commands import ALIASES, COMMANDS
from edgellm_tui.history import History
from edgellm_tui.pulls import Pulls
from edgellm_tui.screens.chat import ChatScreen
from edgellm_tui.screens.help import HelpScreen
from edgellm_tui.screens.models import ModelScreen
from edgellm_tui.screens.resume import ResumeScreen
from edgellm_tui.screens.settings import SettingsScreen

HERE = Path(__file__).parent
_TWICE_S = 2.0  # two presses of ctrl+c within this leave


class ChatApp(App[None]):
    """`model` is who will be asked first; where none is here, `offer` is what could be fetched."""

    TITLE = "edgellm"
    CSS_PATH: ClassVar = [HERE / "markdown" / "answer.tcss", *sorted((HERE / "widgets").glob("*.tcss"))]
    PAUSE_GC_ON_SCROLL = True
    ENABLE_COMMAND_PALETTE = True
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("ctrl+o", "models", "model", id="app.models", priority=True),
        Binding("ctrl+r", "resume", "history", id="app.resume", priority=True),
        Binding("f2", "settings", "settings", id="app.settings", priority=True),
        Binding("f1", "help", "help", id="app.help", priority=True),
        Binding("ctrl+q", "quit", "leave", id="app.quit", priority=True),
    ]

    def __init__(
        self, paths: Paths, settings: Settings, history: History, model: Model | None, offer: Model | None
    ) -> None:
        super().__init__()
        self.history = history
        self.bridge = Bridge(paths, settings)
        self.pulls = Pulls(paths, self.post_message)
        self.chat: ChatScreen = ChatScreen(self.bridge, history, model, offer)
        with contextlib.suppress(*UNREADABLE):
            self.chat.session.wishes = msgspec.json.decode(history.preference("wishes") or "{}", type=Wishes)
        self.failure: Exception | None = None
        self._interrupted = 0.0
        for theme in themes.THEMES:
            self.register_theme(theme)
        kept = history.preference("theme")
        self.theme = kept if kept in themes.CHOICES else themes.suggested()

    def get_driver_class(self) -> type[Driver]:
        if os.name == "posix" and constants.DRIVER is None:
            from edgellm_tui.terminal import TerminalDriver

            return TerminalDriver
        return super().get_driver_class()

    def get_default_screen(self) -> Screen[None]:
        return self.chat

    def on_mount(self) -> None:
        self.theme_changed_signal.subscribe(self, lambda theme: self.history.prefer("theme", theme.name))

    def on_unmount(self) -> None:
        self.pulls.close()
        self.bridge.close()

    # -- commands ----------------------------------------------------------------------------------------

    def get_system_commands(self, _screen: Screen[object]) -> Iterable[SystemCommand]:
        chat = self.chat
        yield SystemCommand("New conversation", "ctrl+n", chat.action_new)
        yield SystemCommand("Earlier conversations", "ctrl+r", self.action_resume)
        yield SystemCommand("Choose a model", "ctrl+o", self.action_models)
        yield SystemCommand("Settings for answers", "f2", self.action_settings)
        yield SystemCommand("Answer the last question again", "f5", chat.action_retry)
        yield SystemCommand("Copy the last answer", "ctrl+y", chat.action_copy_answer)
        yield SystemCommand("Show or hide thoughts", "ctrl+t", chat.action_thoughts)
        yield SystemCommand("Conversations at the left", "ctrl+b", chat.action_sidebar)
        for name in themes.CHOICES:
            yield SystemCommand(f"Theme: {name.removeprefix('edgellm-')}", "", lambda name=name: self._dress(name))
        yield SystemCommand("Keys", "f1", self.action_help)
        yield SystemCommand("Leave", "ctrl+q", self.action_quit)

    def _dress(self, theme: str) -> None:
        self.theme = theme

    def action_help(self) -> None:
        if not isinstance(self.screen, HelpScreen):
            self.push_screen(HelpScreen())

    def action_models(self) -> None:
        if self.screen is self.chat:
            self.push_screen(ModelScreen(self.bridge, self.chat.session.model), self._model_chosen)

    def action_settings(self) -> None:
        if self.screen is self.chat:
            self.push_screen(SettingsScreen(self.chat.session.wishes, self.wish))

    def wish(self, wishes: Wishes) -> None:
        """Answers are made so from now on; kept for the next time, too."""
        self.chat.session.wishes = wishes
        self.chat.show_facts()
        self.history.prefer("wishes", msgspec.json.encode(wishes).decode())

    async def use(self, name: str) -> None:
        """Ask the model of that name or alias. Raises InvalidName, NotFound with the way to get it, …"""
        await self._take(await self.bridge.named(name))

    def action_resume(self) -> None:
        if self.screen is self.chat:
            screen = ResumeScreen(self.history)

            async def done(chosen: str | None) -> None:
                await self.chat.forget(screen.removed)
                if chosen is not None:
                    self.chat.post_message(messages.ConversationChosen(int(chosen)))

            self.push_screen(screen, done)

    def action_help_quit(self) -> None:
        """Ctrl+C. It stops an answer, and only when pressed twice does it leave: nobody loses a chat by habit."""
        now = time.monotonic()
        if self.chat.answering:
            self.run_worker(self.chat.action_stop())
        elif now - self._interrupted < _TWICE_S:
            self.exit()
        else:
            self._interrupted = now
            self.notify("ctrl+c once more leaves; all is kept.", timeout=_TWICE_S)

    async def _model_chosen(self, name: str | None) -> None:
        if name is not None:
            await self._take(name)

    async def _take(self, name: str) -> None:
        """Make a model that is here the one that is asked."""
        try:
            model = next((each for each in await self.bridge.models() if each.name == name and each.here), None)
        except EdgeError as error:
            self._tell(error.message, error.hint)
            return
        if model is not None:
            await self.chat.choose(model)
            await asyncio.to_thread(remember, self.bridge.paths, model.name)

    # -- messages ----------------------------------------------------------------------------------------

    @on(messages.Commanded)
    async def _obey(self, message: messages.Commanded) -> None:
        try:
            command = slash.find(message.name, COMMANDS, ALIASES)
            slash.require_fitting(message.name, message.rest, command.usage, command.meaning)
            done = command.run(self, message.rest)
            if done is not None:
                await done
        except EdgeError as error:
            self._tell(error.message, error.hint)
            self.chat.prompt.area.put_back(message.text)

    @on(messages.PullAsked)
    def _pull(self, message: messages.PullAsked) -> None:
        self.pulls.start(message.name)

    @on(messages.PullMoved)
    async def _pull_moved(self, message: messages.PullMoved) -> None:
        offer = self.chat.offer
        if offer is not None and offer.model.name == message.name:
            offer.move(message.progress)
        if isinstance(self.screen, ModelScreen):
            await self.screen.pull_moved(message.name, message.progress)

    @on(messages.PullEnded)
    async def _pull_ended(self, message: messages.PullEnded) -> None:
        offer = self.chat.offer
        if offer is not None and message.error and offer.model.name == message.name:
            offer.fail(message.error)
        if isinstance(self.screen, ModelScreen):
            await self.screen.pull_ended(message.name, message.error)
        elif message.error:
            self._tell(message.error, None)
        elif self.chat.session.model:
            self.notify(f"{message.name} is here now; ctrl+o chooses it.")
        if not message.error and not self.chat.session.model:
            await self._take(message.name)

    @on(messages.Failure)
    def _failed(self, message: messages.Failure) -> None:
        self._tell(message.message, message.hint)
        if message.unasked:
            self.chat.prompt.area.put_back(message.unasked)

    @on(messages.CopyAsked)
    def _copy(self, message: messages.CopyAsked) -> None:
        self.copy_to_clipboard(message.text)
        self.notify(f"Copied {message.what}.", timeout=2, markup=False)

    def _tell(self, message: str, hint: str | None) -> None:
        self.notify(message + (f"\n{hint}" if hint else ""), severity="error", timeout=10, markup=False)

    # -- what must not happen ----------------------------------------------------------------------------

    def _handle_exception(self, error: Exception) -> None:
        """The parent prints a traceback; ours is told by whoever started the app."""
        if self.failure is None:
            self.failure = error
        super()._handle_exception(error)

    def _print_error_renderables(self) -> None:
        self._exit_renderables.clear()
