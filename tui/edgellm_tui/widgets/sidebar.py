"""Conversations at the left, on screens that have the room."""

from __future__ import annotations

import time
from collections.abc import Sequence

from textual.content import Content
from textual.widgets import OptionList
from textual.widgets.option_list import Option

from edgellm.units import ago
from edgellm_tui.messages import ConversationChosen
from edgellm_tui.records import Conversation

MOST = 200
_ROOM = 25  # columns for a title


class Sidebar(OptionList):
    """The latest first; the one being held is marked."""

    def show(self, conversations: Sequence[Conversation], current: int | None) -> None:
        self.clear_options()
        self.add_options([_option(each, each.id == current) for each in conversations])
        self.highlighted = next((at for at, each in enumerate(conversations) if each.id == current), None)

    def on_option_list_option_selected(self, event: OptionList.OptionSelected) -> None:
        event.stop()
        if event.option_id is not None:
            self.post_message(ConversationChosen(int(event.option_id)))


def _option(conversation: Conversation, current: bool) -> Option:
    title = Content(conversation.title or "untitled").truncate(_ROOM, ellipsis=True)
    mark = "▌" if current else " "
    age = ago(time.time() - conversation.updated)
    name = Content.assemble((mark, "$text-primary"), title.stylize("bold") if current else title)
    return Option(Content.assemble(name, "\n ", (age, "$foreground 60%")), id=str(conversation.id))
