"""Prompts to token ids: template, tokeniser, one BOS, and user text that stays text.

Texts of control tokens (`<|im_end|>`) inside messages must not become control tokens: who can write a message could end
his turn and speak as the system. Each such text is marked, before rendering, with a character that occurs nowhere
else and the text's number; the template's own control texts carry no mark. After rendering, a stretch between the
template's control tokens that holds a mark is encoded with control tokens off, as a whole, so that marked text gets the
ids of plain text. The number is there because templates cut messages up (`content.split('</think>')[0]`): a mark left
behind must not disarm a control text of the template's own that comes to stand after it.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Literal

import msgspec

from edgellm.contracts.engine import Tokenizer
from edgellm.contracts.request import Message, Messages, Prompt, Text, Tokens
from edgellm.engine.reasoning import SPACE, ReasoningFormat, Tags, reasoning_format
from edgellm.engine.template import ChatTemplate, spare_character
from edgellm.engine.text import ReplyText
from edgellm.errors import EdgeError, InvalidRequest


class EncodedPrompt(msgspec.Struct, frozen=True):
    """A prompt as token ids, and what the reply to it is like.

    reasoning        the format of the model's thoughts, where it may have any in this reply
    started_inside   the prompt ends within the thoughts
    continued        and in the middle of a text: the reply's first white space is part of it
    """

    tokens: list[int]
    reasoning: ReasoningFormat | None = None
    started_inside: bool = False
    continued: bool = False

    def reply(self, tokenizer: Tokenizer, stop: tuple[str, ...]) -> ReplyText:
        """For the text of one reply."""
        return ReplyText(tokenizer, stop, self.reasoning, self.started_inside, continued=self.continued)


class PromptEncoder:
    """Encodes prompts for one model. May be used from any thread."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        """Cheap: the template is compiled when first needed, or by `prepare`."""
        self._tokenizer = tokenizer
        self._chat: _Chat | EdgeError | None = None
        self._lock = threading.Lock()

    def prepare(self) -> None:
        """Compile the template ahead of the first conversation. A bad one is reported when a conversation comes."""
        try:
            self._prepared()
        except EdgeError:
            pass

    def encode(self, prompt: Prompt) -> EncodedPrompt:
        """Token ids, with exactly one BOS where the model wants one.

        Messages    through the chat template; a last assistant turn is left open, to be continued
        Text        control texts in it are recognised
        Tokens      as they are

        Raises InvalidRequest for what the prompt is to blame for, `param` saying where; BadModelFile for a bad
        template.
        """
        match prompt:
            case Messages(messages):
                return self._conversation(messages)
            case Text(text):
                _check_text(text, "the prompt", "prompt")
                return EncodedPrompt(self._started(self._tokenizer.encode(text, special=True)))
            case Tokens(ids):
                return EncodedPrompt(self._checked(ids) or self._started([]))

    def _conversation(self, messages: Sequence[Message]) -> EncodedPrompt:
        if not messages:
            raise InvalidRequest("the conversation has no messages", param="messages")
        for index, message in enumerate(messages):
            _check_text(message.content, f"message {index}", f"messages[{index}].content")
            _check_text(message.name or "", f"the name in message {index}", f"messages[{index}].name")
        chat = self._prepared()
        mark = ""
        if any(chat.control.within(message.content) or chat.control.within(message.name or "") for message in messages):
            texts = (part for message in messages for part in (message.content, message.name or ""))
            mark = spare_character([chat.template.source, *texts])
            messages = [_marked(message, lambda text: chat.control.marked(text, mark)) for message in messages]
        if messages[-1].role == "assistant":
            text = chat.template.render_open(messages)
            reply = _continued(chat.reasoning, messages[-1].content)
        else:
            text = chat.template.render(messages)
            reply = EncodedPrompt([], chat.reasoning, _opened(chat, messages, text))
        return msgspec.structs.replace(reply, tokens=self._started(self._tokens(chat, text, mark)))

    def _tokens(self, chat: _Chat, text: str, mark: str) -> list[int]:
        if not mark:
            return self._tokenizer.encode(text, special=True)
        return [
            token
            for stretch, special in chat.control.stretches(text, mark)
            if stretch
            for token in self._tokenizer.encode(stretch, special=special)
        ]

    def _started(self, ids: list[int]) -> list[int]:
        """With one BOS: added where the model expects it, and not twice where template or text bring their own."""
        bos = self._tokenizer.bos
        if bos is None:
            if not ids:
                raise InvalidRequest("the prompt is empty, and this model has no token to begin with", param="prompt")
            return ids
        if not ids or (self._tokenizer.adds_bos and ids[0] != bos):
            return [bos, *ids]
        extra = 0
        while ids[extra : extra + 2] == [bos, bos]:
            extra += 1
        return ids[extra:]

    def _checked(self, ids: Sequence[int]) -> list[int]:
        size = self._tokenizer.vocabulary_size
        if ids and not (min(ids) >= 0 and max(ids) < size):
            index = next(index for index, token in enumerate(ids) if not 0 <= token < size)
            raise InvalidRequest(
                f"token {index} of the prompt is {ids[index]}; this model's ids go from 0 to {size - 1}",
                param=f"prompt[{index}]",
            )
        return list(ids)

    def _prepared(self) -> _Chat:
        with self._lock:
            if self._chat is None:
                try:
                    self._chat = self._compiled()
                except EdgeError as error:
                    self._chat = error
            if isinstance(self._chat, EdgeError):
                raise EdgeError.from_info(self._chat.info)
            return self._chat

    def _compiled(self) -> _Chat:
        source = self._tokenizer.chat_template
        if not source or not source.strip():
            raise InvalidRequest(
                "this model has no chat template: it continues text and was not taught to hold conversations",
                hint="send text to /v1/completions, or pick a model tuned for chat (often named -instruct or -it)",
                param="messages",
            )
        template = ChatTemplate(source, self._text_of(self._tokenizer.bos), self._text_of(self._tokenizer.eos))
        reasoning = reasoning_format(source, self._tokenizer)
        return _Chat(template, ControlTexts(self._tokenizer.special_texts), reasoning)

    def _text_of(self, token: int | None) -> str:
        return "" if token is None else self._tokenizer.token_text(token)


class _Chat:
    """What conversations with this model need."""

    __slots__ = ("control", "reasoning", "template")

    def __init__(self, template: ChatTemplate, control: ControlTexts, reasoning: ReasoningFormat | None) -> None:
        self.template = template
        self.control = control
        self.reasoning = reasoning


def _opened(chat: _Chat, messages: Sequence[Message], text: str) -> bool:
    """Whether the prompt has opened the model's thoughts: its own last words are the tag, not a message's."""
    if not isinstance(chat.reasoning, Tags) or not text.rstrip(SPACE).endswith(chat.reasoning.opening):
        return False
    before = chat.template.render(messages, add_generation_prompt=False)
    return not before.rstrip(SPACE).endswith(chat.reasoning.opening)


def _continued(reasoning: ReasoningFormat | None, begun: str) -> EncodedPrompt:
    """The reply that goes on after `begun`: within its thoughts, or in its answer, where tags are text."""
    if not begun.strip(SPACE):
        return EncodedPrompt([], reasoning)
    if isinstance(reasoning, Tags) and begun.lstrip(SPACE).startswith(reasoning.opening):
        inside = reasoning.closing not in begun
        return EncodedPrompt([], reasoning if inside else None, inside, continued=inside)
    return EncodedPrompt([])


class ControlTexts:
    """Finds the texts of control tokens in a text: leftmost first, of several there the longest.

    By a look at two characters and a few dictionary look-ups rather than by one large regular expression: vocabularies
    have up to thousands of control tokens (`<unused123>`), and a hostile one may have any.
    """

    def __init__(self, texts: Sequence[str]) -> None:
        self._texts = sorted({text for text in texts if text}, key=len, reverse=True)
        self._numbers = {text: number for number, text in enumerate(self._texts)}
        self._lengths: dict[str, list[int]] = {}  # by the first two characters (or the only one), longest first
        for text in self._texts:
            lengths = self._lengths.setdefault(text[:2], [])
            if len(text) not in lengths:
                lengths.append(len(text))
        starts = {re.escape(text[0]) for text in self._texts}
        self._starts = re.compile(f"[{''.join(sorted(starts))}]") if starts else None

    def spans(self, text: str) -> Iterator[tuple[int, int]]:
        """Start and end of each occurrence, in order, without overlaps."""
        end = 0
        for match in self._starts.finditer(text) if self._starts else ():
            start = match.start()
            if start >= end and (length := self._length_at(text, start)):
                end = start + length
                yield start, end

    def within(self, text: str) -> bool:
        """Whether there is any."""
        return next(self.spans(text), None) is not None

    def marked(self, text: str, mark: str) -> str:
        """`text` with `mark` and a number of six digits before each occurrence."""
        parts: list[str] = []
        done = 0
        for start, end in self.spans(text):
            parts += [text[done:start], mark, f"{self._numbers[text[start:end]]:06x}"]
            done = start
        return "".join([*parts, text[done:]])

    def stretches(self, text: str, mark: str) -> Iterator[tuple[str, bool]]:
        """Cut a rendered conversation: (text without marks, whether control texts in it are control tokens)."""
        trusted: list[str] = []
        stretch: list[str] = []  # since the template's last control text
        marked = False
        for part, kind in [*self._parts(text, mark), ("", "control")]:
            if kind != "control":
                stretch.append(part)
                marked |= kind == "marked"
                continue
            if marked:
                yield "".join(trusted), True
                yield "".join(stretch), False
                trusted = []
            else:
                trusted += stretch
            trusted.append(part)
            stretch, marked = [], False
        yield "".join(trusted), True

    def _parts(self, text: str, mark: str) -> Iterator[tuple[str, Literal["plain", "marked", "control"]]]:
        done = 0
        for tag in re.finditer(f"{mark}([0-9a-f]{{6}})?", text):
            yield from self._unmarked(text[done : tag.start()])
            literal = self._texts[int(tag[1], 16)] if tag[1] else ""
            if not text.startswith(literal, tag.end()):
                literal = ""  # the template has cut the mark from its text
            yield literal, "marked"
            done = tag.end() + len(literal)
        yield from self._unmarked(text[done:])

    def _unmarked(self, text: str) -> Iterator[tuple[str, Literal["plain", "control"]]]:
        done = 0
        for start, end in self.spans(text):
            yield text[done:start], "plain"
            yield text[start:end], "control"
            done = end
        yield text[done:], "plain"

    def _length_at(self, text: str, start: int) -> int:
        for length in self._lengths.get(text[start : start + 2], ()):
            found = text[start : start + length]
            if found in self._numbers:
                return len(found)  # less than `length` at the end of the text
        return int(text[start] in self._numbers)


def _marked(message: Message, mark: Callable[[str], str]) -> Message:
    return Message(message.role, mark(message.content), message.name and mark(message.name))


def _check_text(text: str, what: str, param: str) -> None:
    """Half a surrogate pair is no character: no tokeniser and no JSON can carry it. NUL is a character like others."""
    if text.isascii():
        return
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise InvalidRequest(
            f"{what} is not valid Unicode: it has half a surrogate pair at character {error.start}",
            hint="send characters beyond U+FFFF whole, or as a complete \\ud83d\\ude00 pair",
            param=param,
        ) from error
