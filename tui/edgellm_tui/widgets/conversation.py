"""The turns of a conversation, the latest at the bottom. Only a window of a long one is on the screen."""

from __future__ import annotations

from collections.abc import Sequence

from textual.containers import VerticalScroll
from textual.geometry import Size
from textual.widget import Widget

from edgellm_tui.messages import EarlierWanted
from edgellm_tui.records import Turn
from edgellm_tui.widgets.turns import Question, Reply

MOST = 120  # turns that stay mounted while one reads at the bottom


class Conversation(VerticalScroll, can_focus=False):
    """It follows the bottom until the reader scrolls up, and again when the reader comes back down."""

    def __init__(self) -> None:
        super().__init__()
        self._more = False  # earlier turns exist that are not shown

    @property
    def replies(self) -> list[Reply]:
        return list(self.query_children(Reply))

    @property
    def last(self) -> Reply | None:
        """The answer at the end, if the last turn is one."""
        last = self.children[-1] if self.children else None
        return last if isinstance(last, Reply) else None

    @property
    def first_id(self) -> int | None:
        """The turn at the top."""
        return next((turn.turn.id for turn in self.children if isinstance(turn, Question | Reply)), None)

    async def show(self, turns: Sequence[Turn], more: bool) -> None:
        """Show these instead of what is there; `more`: there are earlier ones."""
        self._more = False  # what scrolls now is not the reader
        with self.app.batch_update():
            await self.remove_children()
            await self.mount_all([widget_of(turn) for turn in turns])
        for reply in self.replies:
            reply.interrupted()
        self._follow()
        self._more = more

    async def add(self, turn: Turn) -> None:
        """Append one; the reader is taken to it."""
        await self.mount(widget_of(turn))
        self._follow()
        excess = len(self.children) - MOST
        if excess > 0:
            await self.remove_children(list(self.children)[:excess])
            self._more = True

    async def put_earlier(self, turns: Sequence[Turn], more: bool) -> None:
        """Put these before what is there; what is being read stays where it is."""
        if not turns or not self.children:
            self._more = False
            return
        self._more = False
        top = self.children[0]
        widgets = [widget_of(turn) for turn in turns]
        await self.mount_all(widgets, before=top)
        for reply in widgets:
            if isinstance(reply, Reply):
                reply.interrupted()

        def settle() -> None:
            self.scroll_to(y=self.scroll_y + top.virtual_region.y - top.styles.margin.top, animate=False, force=True)
            self._more = more

        self.call_after_refresh(settle)

    def _follow(self) -> None:
        """Keep to the bottom from now on; but what fits on the screen stands at its top."""
        fits = self.virtual_size.height <= self.container_size.height
        self.anchor(not fits)
        if fits:
            self.scroll_y = self.scroll_target_y = 0

    def watch_virtual_size(self, size: Size) -> None:
        """An anchor would pull what is shorter than the screen down to its bottom."""
        if self.is_anchored != (size.height > self.container_size.height):
            self._follow()

    def on_resize(self) -> None:
        self.watch_virtual_size(self.virtual_size)

    def watch_scroll_y(self, old_value: float, new_value: float) -> None:
        super().watch_scroll_y(old_value, new_value)
        if self._more and new_value < old_value and new_value <= self.size.height:
            self._more = False  # until they are there
            self.post_message(EarlierWanted())


def widget_of(turn: Turn) -> Widget:
    return Question(turn) if turn.role == "user" else Reply(turn)
