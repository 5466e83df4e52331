"""The chat: a conversation, the prompt below it, the list of others beside it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Coroutine
from typing import Any, ClassVar

from textual import events, on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical
from textual.reactive import reactive
from textual.screen import Screen
from textual.timer import Timer
from textual.widgets import TextArea
from textual.worker import Worker

from edgellm import slash
from edgellm.errors import EdgeError
from edgellm.inert import label
from edgellm_tui import messages
from edgellm_tui.bridge import Bridge, Model
from edgellm_tui.calm import IDLE_S, tidy
from edgellm_tui.history import History
from edgellm_tui.markdown.code import CodeBlock
from edgellm_tui.session import Session
from edgellm_tui.widgets import keys
from edgellm_tui.widgets.conversation import Conversation
from edgellm_tui.widgets.empty import Empty, Offer
from edgellm_tui.widgets.header import Header
from edgellm_tui.widgets.prompt import Prompt, PromptArea
from edgellm_tui.widgets.sidebar import MOST, Sidebar
from edgellm_tui.widgets.thought import Thought
from edgellm_tui.widgets.turns import Reply

PAGE = 10  # turns shown at once when a conversation is opened, and added when the reader comes to the top
_TOLD_S = 3.0
WIDE = 110  # columns from which on the list of conversations is shown


class ChatScreen(Screen[None]):
    """`model` is who will be asked; None where nothing is here yet, and `offer` is what could be fetched."""

    CSS_PATH = "chat.tcss"
    AUTO_FOCUS = "PromptArea"
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "stop", "stop", id="chat.stop"),
        Binding("ctrl+n", "new", "new conversation", id="chat.new", priority=True),
        Binding("f5", "retry", "try again", id="chat.retry", priority=True),
        Binding("ctrl+b", "sidebar", "conversations at the left", id="chat.sidebar", priority=True),
        Binding("ctrl+y", "copy_answer", "copy the last answer", id="chat.copy", priority=True),
        Binding("ctrl+t", "thoughts", "show or hide thoughts", id="chat.thoughts", priority=True),
        Binding("pageup", "scroll('page_up')", show=False, id="chat.page_up", priority=True),
        Binding("pagedown", "scroll('page_down')", show=False, id="chat.page_down", priority=True),
        Binding("ctrl+home", "scroll('home')", show=False, id="chat.top", priority=True),
        Binding("ctrl+end", "scroll('end')", show=False, id="chat.bottom", priority=True),
    ]
    answering: reactive[bool] = reactive(False)

    def __init__(self, bridge: Bridge, history: History, model: Model | None, offer: Model | None) -> None:
        super().__init__()
        self._bridge = bridge
        self._history = history
        self._model = model
        self._quantization = ""  # of the model of an earlier conversation
        self._offer = offer
        self._worker: Worker[None] | None = None
        self._sidebar_wanted = True
        self._told = -_TOLD_S  # when it was last said that an answer is still coming, monotonic
        self.session = Session(bridge, history, self.post_message)
        self.session.model = model.name if model else ""

    # -- what is on it -----------------------------------------------------------------------------------

    def compose(self) -> ComposeResult:
        yield Header()
        with Horizontal():
            yield Sidebar()
            with Vertical(id="main"):
                yield Conversation()
                yield Prompt()
        yield keys.KeyLine()

    async def on_mount(self) -> None:
        self._idle: Timer = self.set_interval(IDLE_S, self._rest, pause=True)
        self._sidebar_wanted = self._history.preference("sidebar") != "hidden"
        self.query_one(PromptArea).focus()
        await self._open(None)

    @property
    def conversation(self) -> Conversation:
        return self.query_one(Conversation)

    @property
    def prompt(self) -> Prompt:
        return self.query_one(Prompt)

    @property
    def offer(self) -> Offer | None:
        """The offer of a model, while that is what is shown."""
        return next(iter(self.query(Offer)), None)

    async def choose(self, model: Model) -> None:
        """Ask this one from now on."""
        self._model = model
        self.session.model = model.name
        self._offer = None
        await self._put_front()

    async def _open(self, conversation: int | None) -> None:
        """Show a conversation; None: the empty screen of a new one."""
        await self._stop()
        if conversation is None:
            self.session.begin(None)
            self.session.model = self._model.name if self._model else ""
            await self.conversation.show((), more=False)
        else:
            try:
                found = await asyncio.to_thread(self._history.conversation, conversation)
                turns = await asyncio.to_thread(lambda: self._history.turns(conversation, limit=PAGE + 1))
            except EdgeError as error:
                self.post_message(messages.Failure(error.message, error.hint))
                return
            self.session.begin(found)
            self._quantization = await self._bridge.quantization(self.session.model)
            await self.conversation.show(turns[-PAGE:], more=len(turns) > PAGE)
            self.prompt.area.last_question = next((t.text for t in reversed(turns) if t.role == "user"), "")
        await self._put_front()
        self.prompt.area.focus()

    async def _put_front(self) -> None:
        """What stands in place of a conversation that has not begun; the facts above; the list beside."""
        front = self.query("Empty, Offer")
        empty = self.session.conversation is None
        await front.remove()
        if empty and self._offer is not None:
            await self.query_one("#main").mount(Offer(self._offer), before=self.conversation)
        elif empty and self._model is not None:
            await self.query_one("#main").mount(Empty(self._model), before=self.conversation)
        self.conversation.display = not empty
        self.show_facts()
        name = self.session.model
        fetch = f"enter fetches {self._offer.name}" if self._offer else "ctrl+o chooses a model"
        self.prompt.invite(f"Ask {label(name, 40)} …" if name else fetch)
        self._show_keys()
        await self._fill_sidebar()

    def show_facts(self) -> None:
        """Above: who is asked, where, and what is set for the answers."""
        name, model = self.session.model, self._model
        quantization = model.quantization if model is not None and model.name == name else self._quantization
        wished = [setting for setting, value in self.session.wishes.values().items() if value is not None]
        told = f"{', '.join(wished)} set" if len(wished) < 3 else f"{len(wished)} settings"
        facts = (name, quantization, told if wished else "", "this device" if name else "")
        self.query_one(Header).facts = tuple(fact for fact in facts if fact)

    async def _fill_sidebar(self) -> None:
        current = self.session.conversation.id if self.session.conversation else None
        try:
            found = await asyncio.to_thread(self._history.conversations, MOST)
        except EdgeError:
            found = []
        sidebar = self.query_one(Sidebar)
        sidebar.show(found, current)
        self._fit_sidebar(self.size.width)

    def _fit_sidebar(self, width: int) -> None:
        sidebar = self.query_one(Sidebar)
        sidebar.display = self._sidebar_wanted and width >= WIDE and sidebar.option_count > 0

    def on_resize(self, event: events.Resize) -> None:
        self._fit_sidebar(event.size.width)

    def on_descendant_focus(self) -> None:
        self._show_keys()

    def watch_answering(self) -> None:
        if self.is_attached:  # an answer may end because the app does
            self.prompt.area.busy = self.answering
            self._show_keys()

    def _show_keys(self) -> None:
        focused, last = self.focused, self.conversation.last
        shown = keys.IDLE
        if isinstance(focused, CodeBlock):
            shown = keys.CODE
        elif isinstance(focused, Sidebar):
            shown = keys.LIST
        elif self.answering:
            shown = keys.ANSWERING
        elif self.offer is not None:
            shown = keys.OFFER
        elif last is not None and last.broken:
            shown = keys.FAILED
        self.query_one(keys.KeyLine).keys = shown

    # -- asking and answering ----------------------------------------------------------------------------

    @on(messages.Submitted)
    def _ask(self, message: messages.Submitted) -> None:
        command = slash.split(message.text)
        if command is not None:
            self.app.post_message(messages.Commanded(message.text, *command))
        elif self.answering:
            self.prompt.area.put_back(message.text)
            self._too_early()
        elif not self.session.model:
            self.prompt.area.put_back(message.text)
            self.notify("No model is here yet: enter in the empty prompt fetches one.", timeout=4)
        else:
            self.prompt.area.last_question = message.text
            self._run(self.session.ask(message.text))

    @on(messages.TooEarly)
    def _too_early(self) -> None:
        now = time.monotonic()
        if now - self._told >= _TOLD_S:  # lines that are typed by a machine shall not fill the screen with it
            self._told = now
            self.notify("The answer is still coming; esc stops it.", timeout=_TOLD_S)

    @on(messages.EmptySubmitted)
    def _propose(self) -> None:
        offer, last = self.offer, self.conversation.last
        if offer is not None:
            self.app.post_message(messages.PullAsked(offer.model.name))
        elif last is not None and last.broken:
            self.action_retry()

    def action_retry(self) -> None:
        if not self.answering and self.session.conversation is not None and self.session.model:
            self._run(self.session.retry())

    def _run(self, work: Coroutine[Any, Any, None]) -> None:
        self.answering = True
        self._worker = self.run_worker(self._answer(work), group="answer", exclusive=True)

    async def _answer(self, work: Coroutine[Any, Any, None]) -> None:
        self._idle.pause()
        try:
            await work
        finally:
            self.answering = False
            self._idle.reset()
            self._idle.resume()

    @on(TextArea.Changed)
    def _typed(self) -> None:
        self._idle.reset()

    def _rest(self) -> None:
        self._idle.pause()
        tidy()

    async def _stop(self) -> None:
        """Stop the answer that is coming; it is kept as far as it came."""
        worker = self._worker
        if worker is not None and not worker.is_finished:
            worker.cancel()
            while not worker.is_finished:
                await asyncio.sleep(0.01)

    async def action_stop(self) -> None:
        if self.answering:
            await self._stop()
        self.prompt.area.focus()

    @on(messages.Asked)
    async def _asked(self, message: messages.Asked) -> None:
        if not self.conversation.display:
            await self._put_front()
        await self.conversation.add(message.turn)

    @on(messages.AnswerBegan)
    async def _began(self, message: messages.AnswerBegan) -> None:
        await self.conversation.add(message.turn)

    @on(messages.AnswerMoved)
    def _moved(self, message: messages.AnswerMoved) -> None:
        if reply := self._reply(message.id):
            reply.move(message.progress)

    @on(messages.AnswerGrew)
    async def _grew(self, message: messages.AnswerGrew) -> None:
        if reply := self._reply(message.id):
            await reply.grow(message.text, message.thought, message.thought_s)

    @on(messages.AnswerEnded)
    async def _ended(self, message: messages.AnswerEnded) -> None:
        if reply := self._reply(message.turn.id):
            await reply.end(message.turn)
        self._show_keys()
        await self._fill_sidebar()

    def _reply(self, id: int) -> Reply | None:
        """The answer of that turn, if it is on the screen: the reader may have gone elsewhere meanwhile."""
        last = self.conversation.last
        return last if last is not None and last.turn.id == id else None

    # -- conversations -----------------------------------------------------------------------------------

    async def action_new(self) -> None:
        await self._open(None)

    @on(messages.ConversationChosen)
    async def _chosen(self, message: messages.ConversationChosen) -> None:
        await self._open(message.conversation)

    async def forget(self, conversations: set[int]) -> None:
        """These have been removed."""
        if self.session.conversation is not None and self.session.conversation.id in conversations:
            await self._open(None)
        await self._fill_sidebar()

    @on(messages.EarlierWanted)
    async def _earlier(self) -> None:
        first, held = self.conversation.first_id, self.session.conversation
        if first is None or held is None:
            return
        try:
            turns = await asyncio.to_thread(lambda: self._history.turns(held.id, before=first, limit=PAGE + 1))
        except EdgeError as error:
            self.post_message(messages.Failure(error.message, error.hint))
            return
        await self.conversation.put_earlier(turns[-PAGE:], more=len(turns) > PAGE)

    def action_sidebar(self) -> None:
        """Show and enter it; from inside, hide it."""
        sidebar = self.query_one(Sidebar)
        if sidebar.display and not sidebar.has_focus:
            sidebar.focus()
            return
        self._sidebar_wanted = not sidebar.display
        self._history.prefer("sidebar", "shown" if self._sidebar_wanted else "hidden")
        self._fit_sidebar(self.size.width)
        (sidebar if sidebar.display else self.prompt.area).focus()
        if self._sidebar_wanted and not sidebar.display:
            self.notify(f"The list of conversations needs {WIDE} columns; ctrl+r shows it anywhere.", timeout=4)

    # -- reading -----------------------------------------------------------------------------------------

    def action_scroll(self, where: str) -> None:
        getattr(self.conversation, f"scroll_{where}")(animate=False)

    def action_copy_answer(self) -> None:
        last = next((reply for reply in reversed(self.conversation.replies) if reply.text), None)
        if last is not None:
            self.post_message(messages.CopyAsked(last.text, "the answer"))

    def action_thoughts(self) -> None:
        for thought in self.query(Thought):
            thought.toggle()
