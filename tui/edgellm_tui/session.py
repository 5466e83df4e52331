"""The conversation being held: what is asked, how an answer comes, and that none of it is lost. Knows no widget."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import aclosing

import msgspec
from textual.message import Message

from edgellm.contracts.events import (
    ChoiceDone,
    Event,
    Failed,
    Finished,
    FinishReason,
    Progress,
    ReasoningDelta,
    TextDelta,
)
from edgellm.contracts.request import GenerateRequest, Messages, Prompt, Text
from edgellm.errors import ContextExceeded, EdgeError
from edgellm.inert import label
from edgellm.mentions import missing, with_files
from edgellm.wishes import Wishes
from edgellm_tui.bridge import Bridge
from edgellm_tui.history import History
from edgellm_tui.messages import AnswerBegan, AnswerEnded, AnswerGrew, AnswerMoved, Asked, Failure
from edgellm_tui.records import Conversation, Figures, State, Turn, dialogue

FRAME_S = 0.04  # text is handed to the screen at most this often: more costs CPU that the model wants
KEEP_S = 0.25  # and to the disk
_TOO_LONG = "shorten it; ctrl+n begins a new conversation"
Post = Callable[[Message], object]
Piece = tuple[str, str]  # of the text, of the thought before it


class Session:
    """`post` takes what the screen should know. Run `ask` and `retry` one at a time; cancel them to stop an answer."""

    def __init__(self, bridge: Bridge, history: History, post: Post) -> None:
        self._bridge = bridge
        self._history = history
        self._post = post
        self.model = ""
        self.wishes = Wishes()
        self.conversation: Conversation | None = None

    def begin(self, conversation: Conversation | None) -> None:
        """Continue that conversation; None begins a new one, which is kept from its first question on."""
        self.conversation = conversation
        if conversation is not None and conversation.model:
            self.model = conversation.model

    async def ask(self, text: str) -> None:
        """Keep a question, with the files it names, and answer it."""
        at = self.conversation.id if self.conversation else None
        try:
            whole = await asyncio.to_thread(with_files, text)
            if names := await asyncio.to_thread(missing, text):
                told = ", ".join(label(name, 60) for name in names)
                self._post(Failure(f"there is no file {told}", "the question went without it; esc stops the answer"))
            conversation, turn = await asyncio.to_thread(self._history.ask, at, whole, self.model)
        except EdgeError as error:
            self._post(Failure(error.message, error.hint, unasked=text))
            return
        self.conversation = conversation
        self._post(Asked(turn))
        await self._answer(conversation)

    async def retry(self) -> None:
        """Answer the last question again."""
        if self.conversation is not None:
            await self._answer(self.conversation)

    async def _answer(self, conversation: Conversation) -> None:
        model = self.model
        try:
            turns = await asyncio.to_thread(self._history.turns, conversation.id)
            turn = await asyncio.to_thread(self._history.begin_answer, conversation.id, model)
        except EdgeError as error:
            self._post(Failure(error.message, error.hint))
            return
        self._post(AnswerBegan(turn))
        answer = Answer(turn, self._history, self._post)
        try:
            prompt = await self._prompt(turns, model)
            request = self.wishes.upon(GenerateRequest(id="", model=model, prompt=prompt))
            async with aclosing(self._bridge.answer(request)) as events:
                async for event in events:
                    answer.take(event)
        except EdgeError as error:
            answer.take(Failed(error.info))
        finally:
            answer.end()  # also where it was stopped: without waiting

    async def _prompt(self, turns: list[Turn], model: str) -> Prompt:
        """The conversation up to its last question, without earlier tries at an answer to that."""
        while turns and turns[-1].role == "assistant":
            turns.pop()
        if await self._bridge.chats(model):
            return Messages(self.wishes.before(await asyncio.to_thread(dialogue, turns)))
        return Text(turns[-1].text)  # it continues a text, and remembers nothing


class Answer:
    """An answer that is coming: gathers what the screen gets at once, and what the disk gets at once."""

    def __init__(self, turn: Turn, history: History, post: Post) -> None:
        self._turn = turn
        self._history = history
        self._post = post
        self._began = time.monotonic()
        self._first_s: float | None = None
        self._state: State = "stopped"
        self._error = ""
        self._figures: Figures | None = None
        self._reason: FinishReason = "stop"
        self._thought_from: float | None = None  # monotonic
        self._thought_s = 0.0
        self._unshown: list[Piece] = []
        self._shown = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._unkept: deque[Piece] = deque()
        self._keeping = threading.Lock()
        self._keeper = asyncio.create_task(self._keep_regularly())
        self._post(AnswerMoved(turn.id, None))

    def take(self, event: Event) -> None:
        """The next event."""
        match event:
            case Progress():
                self._post(AnswerMoved(self._turn.id, event))
            case ReasoningDelta():
                self._grow("", event.text)
            case TextDelta():
                self._grow(event.text, "")
            case ChoiceDone():
                self._reason = event.reason
            case Finished():
                self._state = "done"
                first_s = self._first_s if self._first_s is not None else time.monotonic() - self._began
                self._figures = Figures(first_s, event.usage, event.timings, self._reason)
            case Failed():
                self._state = "failed"
                hint = _TOO_LONG if event.error.code == ContextExceeded.code else event.error.hint
                self._error = event.error.message + (f"\n{hint}" if hint else "")

    def end(self) -> None:
        """Nothing more comes. Blocks for one small write: it must not be lost when the app ends."""
        self._keeper.cancel()
        self._show()
        try:
            self._keep()
            turn = self._history.end_answer(
                self._turn.id, self._state, figures=self._figures, error=self._error, thought_s=self._thought_s
            )
        except EdgeError as error:
            self._post(Failure(error.message, error.hint))
            turn = msgspec.structs.replace(self._turn, state=self._state, figures=self._figures, error=self._error)
        self._post(AnswerEnded(turn))

    def _grow(self, text: str, thought: str) -> None:
        now = time.monotonic()
        if self._first_s is None:
            self._first_s = now - self._began
        if thought:
            self._thought_from = self._thought_from or now
            self._thought_s = now - self._thought_from
        self._unshown.append((text, thought))
        self._unkept.append((text, thought))
        if now - self._shown >= FRAME_S:
            self._show()
        elif self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(FRAME_S - (now - self._shown), self._show)

    def _show(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._shown = time.monotonic()
        if self._unshown:
            (text, thought), self._unshown = _joined(self._unshown), []
            self._post(AnswerGrew(self._turn.id, text, thought, self._thought_s))

    async def _keep_regularly(self) -> None:
        while True:
            await asyncio.sleep(KEEP_S)
            if self._unkept:
                with contextlib.suppress(EdgeError):  # said once, at the end, if it has not passed by then
                    await asyncio.to_thread(self._keep)

    def _keep(self) -> None:
        """Called from two threads: what one of them has taken is written before the other takes more."""
        with self._keeping:
            pieces = [self._unkept.popleft() for _ in range(len(self._unkept))]
            try:
                if pieces:
                    self._history.extend_answer(self._turn.id, *_joined(pieces))
            except EdgeError:
                self._unkept.extendleft(reversed(pieces))
                raise


def _joined(pieces: list[Piece]) -> Piece:
    """A model thinks first: of what came meanwhile the order between the two does not matter."""
    return "".join(text for text, _ in pieces), "".join(thought for _, thought in pieces)
