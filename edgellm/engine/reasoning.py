"""Thoughts apart from the answer: the formats in which models write them, and how a reply in one is parted.

A model that was taught to think first wraps its thoughts in tags, or writes them to a channel of their own. Which
format a model has is read from its chat template, which must mention it; a `<think>` in the prose of any other model is
text. Where the tags are control tokens of the vocabulary they are known by id, and the same letters typed are text;
else by their letters, however the tokens cut them.

Tags      Thoughts come first: an opening tag counts at the very beginning of the reply (after white space), or the
          prompt has already opened it; anywhere else it is text. They end at the first closing tag. White space around
          them, and between them and the answer, belongs to neither. Thoughts that never end are thoughts to the end.
Channels  (harmony, as gpt-oss speaks it.) Messages with headers, `<|channel|>NAME<|message|>…<|end|>`: what is said on
          the channel `analysis` is thought, the rest is answer. Headers are not shown.
"""

from __future__ import annotations

from typing import Protocol

import msgspec
from msgspec.structs import replace

from edgellm.contracts.engine import Tokenizer

SPACE = " \t\r\n"
_LONGEST_HEADER = 256  # characters; what is longer was no header
_BETWEEN = "\n\n"  # two messages of one kind


class Tags(msgspec.Struct, frozen=True):
    """Thoughts between two tags. The ids are those of control tokens; None: the tag is known by its letters.

    `label` is what some write between the opening tag and their thoughts.
    """

    opening: str
    closing: str
    opening_id: int | None = None
    closing_id: int | None = None
    label: str = ""


class Channels(msgspec.Struct, frozen=True):
    """Messages on named channels, set off by control tokens."""

    start: int
    channel: int
    message: int
    end: int


ReasoningFormat = Tags | Channels

# As written. To know another format, add it here.
TAGS: tuple[Tags, ...] = (
    Tags("<think>", "</think>"),  # Qwen3, DeepSeek R1, SmolLM3, GLM, Phi-4 reasoning, …
    Tags("[THINK]", "[/THINK]"),  # Magistral
    Tags("<seed:think>", "</seed:think>"),  # Seed-OSS
    Tags("<mm:think>", "</mm:think>"),  # MiniMax M3
    Tags("<reasoning>", "</reasoning>"),
    Tags("<thought>", "</thought>"),  # EXAONE Deep
    Tags("<|START_THINKING|>", "<|END_THINKING|>"),  # Command A
    Tags("<|channel>", "<channel|>", label="thought\n"),  # Gemma 4
    Tags("Here are my reasoning steps:", "[BEGIN FINAL RESPONSE]"),  # Apriel
    Tags("◁think▷", "◁/think▷"),  # Kimi
)
_HARMONY = ("<|start|>", "<|channel|>", "<|message|>", "<|end|>")
_THOUGHTS = "analysis"  # the channel
CHANNEL_OF_ANSWERS = "<|channel|>final<|message|>"


def reasoning_format(template: str, tokenizer: Tokenizer) -> ReasoningFormat | None:
    """The format that `template` mentions; None for a model that does not think, or not aloud."""
    if "<|channel|>" in template and "<|message|>" in template:
        ids = [_control_id(text, tokenizer) for text in _HARMONY]
        known = [token for token in ids if token is not None]
        if len(known) == len(ids):
            return Channels(*known)
    for tags in TAGS:
        if tags.opening in template or tags.closing in template:
            ids = [_control_id(tag, tokenizer) for tag in (tags.opening, tags.closing)]
            return replace(tags, opening_id=ids[0], closing_id=ids[1])
    return None


def _control_id(text: str, tokenizer: Tokenizer) -> int | None:
    ids = tokenizer.encode(text, special=True)
    return ids[0] if len(ids) == 1 and not tokenizer.token_bytes(ids[0]) else None


class Splitter(Protocol):
    """Parts the text of one reply into (thoughts, answer). `marks`: the tokens to be told of instead of their text."""

    marks: frozenset[int]

    def feed(self, text: str) -> tuple[str, str]:
        """What is certain once `text` has come."""
        ...

    def mark(self, token: int) -> tuple[str, str]:
        """One of `marks` has come."""
        ...

    def finish(self) -> tuple[str, str]:
        """What was held back, when nothing more comes."""
        ...


def splitter(reasoning: ReasoningFormat, started_inside: bool, continued: bool) -> Splitter:
    """For one reply. `continued`: the prompt ends in the middle of the thoughts, so their next white space counts."""
    if isinstance(reasoning, Channels):
        return ChannelSplitter(reasoning)
    return TagSplitter(reasoning, started_inside, continued)


class TagSplitter:
    """Thoughts first, between tags.

        opening --tag--> leading --a character--> inside --tag--> gap --a character--> answer

    White space is no character here. What is no tag at `opening` is the answer, or, where the prompt has opened the
    thoughts already, a thought.
    """

    def __init__(self, tags: Tags, started_inside: bool, continued: bool) -> None:
        self._tags = tags
        self._opened = started_inside
        self._label = tags.label
        self._state = "inside" if started_inside and continued else "opening"
        self._held = ""  # white space that may lie at an edge, and what may become a tag
        self.marks = frozenset(token for token in (tags.opening_id, tags.closing_id) if token is not None)

    def feed(self, text: str) -> tuple[str, str]:
        thoughts = ""
        if self._state == "opening":
            text = self._open(text)
        if self._state == "leading":
            text = self._lead(text)
        if self._state == "inside":
            thoughts, text = self._think(text)
        if self._state == "gap":
            text = text.lstrip(SPACE)
            self._state = "answer" if text else "gap"
        return thoughts, text

    def mark(self, token: int) -> tuple[str, str]:
        if token == self._tags.opening_id:
            if self._state == "opening":
                self._state, self._held = "leading", ""
            return "", ""
        if self._state == "answer" or (self._state == "opening" and not self._opened):
            return "", ""
        before = self.finish()
        self._state = "gap"
        return before

    def finish(self) -> tuple[str, str]:
        held, self._held = self._held, ""
        if self._state == "inside":
            return held.rstrip(SPACE), ""
        return (held.strip(SPACE), "") if self._opened or self._state == "leading" else ("", held)

    def _open(self, text: str) -> str:
        """Wait for the opening tag or its absence; returns what follows."""
        text = self._held + text
        rest = text.lstrip(SPACE)
        tag = "" if self._tags.opening_id is not None else self._tags.opening
        if tag and rest.startswith(tag):
            self._state, self._held = "leading", ""
            return rest[len(tag) :]
        if tag.startswith(rest):  # nothing yet but white space and the beginning of a tag
            self._held = text
            return ""
        self._held = ""
        self._state = "inside" if self._opened else "answer"
        return rest if self._opened else text

    def _lead(self, text: str) -> str:
        """Wait for the first thought."""
        text = (self._held + text).lstrip(SPACE)
        if self._label and text.startswith(self._label):
            text, self._label = text.removeprefix(self._label).lstrip(SPACE), ""
        elif self._label.startswith(text):
            self._held = text
            return ""
        self._held = ""
        if text:
            self._state = "inside"
        return text

    def _think(self, text: str) -> tuple[str, str]:
        """Thoughts that are certain, and what follows their end."""
        text = self._held + text
        tag = "" if self._tags.closing_id is not None else self._tags.closing
        at = text.find(tag) if tag else -1
        if at >= 0:
            self._state, self._held = "gap", ""
            return text[:at].rstrip(SPACE), text[at + len(tag) :]
        begun = next((n for n in range(min(len(tag), len(text)), 0, -1) if text.endswith(tag[:n])), 0)
        thoughts = text[: len(text) - begun].rstrip(SPACE)
        self._held = text[len(thoughts) :]
        return thoughts, ""


class ChannelSplitter:
    """Messages one after the other, each with a header; a reply begins within the first header."""

    def __init__(self, channels: Channels) -> None:
        self._ids = channels
        self._header: str | None = ""  # of the message to come; None: within a message
        self._announced = False  # by a control token: this is a header, and no text that lacks one
        self._thinking = False
        self._messages = [0, 0]  # begun so far: of the answer, of thoughts
        self._apart = False  # this one is to be set off from the one before it
        self.marks = frozenset((channels.start, channels.channel, channels.message, channels.end))

    def feed(self, text: str) -> tuple[str, str]:
        if self._header is None:
            return self._said(text)
        self._header += text
        return self._let_go() if len(self._header) > _LONGEST_HEADER else ("", "")

    def mark(self, token: int) -> tuple[str, str]:
        before = ("", "")
        if token == self._ids.channel:
            self._header, self._announced = "", True
        elif token == self._ids.message:
            name = (self._header or "").split(maxsplit=1)
            self._begin(self._announced and name[:1] == [_THOUGHTS])
        else:
            before = self.finish()
            self._header, self._announced = "", token == self._ids.start
        return before

    def finish(self) -> tuple[str, str]:
        return ("", "") if self._header is None or self._announced else self._let_go()

    def _let_go(self) -> tuple[str, str]:
        """What was taken for a header is the answer."""
        text = self._header or ""
        if not text:
            return "", ""
        self._begin(False)
        return self._said(text)

    def _begin(self, thinking: bool) -> None:
        self._header, self._thinking = None, thinking
        self._messages[thinking] += 1
        self._apart = self._messages[thinking] > 1

    def _said(self, text: str) -> tuple[str, str]:
        if text and self._apart:
            self._apart = False
            text = _BETWEEN + text
        return (text, "") if self._thinking else ("", text)
