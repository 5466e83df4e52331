"""Conversations to text: the model's template, user text that stays text, and a last assistant turn left open.

A conversation that ends in an assistant's turn is continued: the prompt ends with that turn's own text, to the letter,
whatever the template would have trimmed or added. So the template is given a mark in its place, what it renders is cut
there, and the text is put behind.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec

from edgellm.contracts.request import Message, TemplateOptions
from edgellm.engine.control_texts import ControlTexts
from edgellm.engine.reasoning import CHANNEL_OF_ANSWERS, SPACE, Channels, ReasoningFormat, Tags
from edgellm.engine.template import ChatTemplate, spare_character

Mark = Callable[[str], str]


class Rendered(msgspec.Struct, frozen=True):
    """Text in stretches, each with whether control texts in it are control tokens; and what the reply is like."""

    stretches: list[tuple[str, bool]]
    reasoning: ReasoningFormat | None
    started_inside: bool = False
    continued: bool = False


class Conversations:
    """Renders conversations with one model."""

    def __init__(self, template: ChatTemplate, control: ControlTexts, reasoning: ReasoningFormat | None) -> None:
        self._template = template
        self._control = control
        self._reasoning = reasoning

    def render(self, messages: Sequence[Message], options: TemplateOptions) -> Rendered:
        """Ready for an answer. Raises InvalidRequest and BadModelFile, as the template does."""
        texts = [part for message in messages for part in (message.content, message.name or "")]
        texts += [value for value in options.values() if isinstance(value, str)]
        mark = ""
        if any(map(self._control.within, texts)):
            mark = spare_character([self._template.source, *texts])

        def marked(text: str) -> str:
            return self._control.marked(text, mark) if mark else text

        turns = [Message(m.role, marked(m.content), m.name and marked(m.name)) for m in messages]
        options = {name: marked(value) if isinstance(value, str) else value for name, value in options.items()}
        if messages[-1].role == "assistant":
            text, reply = self._continued(turns, options, messages[-1].content, marked)
        else:
            text = self._template.render(turns, options=options)
            reply = Rendered([], self._reasoning, self._opened(text, turns, options))
        stretches = list(self._control.stretches(text, mark)) if mark else [(text, True)]
        return msgspec.structs.replace(reply, stretches=stretches)

    def _opened(self, text: str, turns: Sequence[Message], options: TemplateOptions) -> bool:
        """Whether the template has opened the model's thoughts at the end of `text`, and not a message's own words."""
        tags = self._reasoning
        if not isinstance(tags, Tags) or not text.rstrip(SPACE).endswith(tags.opening):
            return False
        before = self._template.render(turns, add_generation_prompt=False, options=options) if turns else ""
        return not before.rstrip(SPACE).endswith(tags.opening)

    def _continued(
        self, turns: Sequence[Message], options: TemplateOptions, begun: str, marked: Mark
    ) -> tuple[str, Rendered]:
        """The conversation up to the end of `begun`, the last turn's text, and what goes on there."""
        head = self._template.render_open(turns, options)
        form = self._reasoning
        if isinstance(form, Channels):
            return _on_channel(head, begun, marked(begun), form)
        if form is None:
            return head + marked(begun), Rendered([], None)
        opened = self._opened(head, turns[:-1], options)
        if not begun.strip(SPACE):
            return head + begun, Rendered([], form, opened)
        before, tag, rest = begun.partition(form.opening)
        if tag and not before.strip(SPACE):  # it begins with thoughts, so the template's own have no place
            thoughts, closed, answer = rest.partition(form.closing)
            # These tags are the assistant's own: control tokens, where they are such.
            text = "".join([_without_thoughts(head, form), before, tag, marked(thoughts), closed, marked(answer)])
            return text, Rendered([], None) if closed else Rendered([], form, True, bool(thoughts.strip(SPACE)))
        return (_without_opening(head, form) if opened else head) + marked(begun), Rendered([], None)


def _on_channel(head: str, begun: str, marked: str, form: Channels) -> tuple[str, Rendered]:
    if head.rstrip(SPACE).endswith(CHANNEL_OF_ANSWERS):
        return head + marked, Rendered([], None)
    if not begun.strip(SPACE):
        return head + begun, Rendered([], form)
    return head + CHANNEL_OF_ANSWERS + marked, Rendered([], None)


def _without_opening(head: str, tags: Tags) -> str:
    return head.rstrip(SPACE).removesuffix(tags.opening)


def _without_thoughts(head: str, tags: Tags) -> str:
    """`head` without the thoughts, empty or only opened, at its end."""
    rest = head.rstrip(SPACE)
    if rest.endswith(tags.closing):
        rest = rest.removesuffix(tags.closing).rstrip(SPACE).removesuffix(tags.label.rstrip()).rstrip(SPACE)
    return rest.removesuffix(tags.opening) if rest.endswith(tags.opening) else head
