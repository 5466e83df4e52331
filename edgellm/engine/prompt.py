"""Prompts to token ids: rendered (conversation.py), tokenised, with one BOS, and cut where that is allowed."""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections.abc import Iterable, Sequence

import msgspec
from msgspec.structs import replace

from edgellm.contracts.engine import Tokenizer
from edgellm.contracts.request import Message, Messages, Prompt, TemplateOptions, Text, Tokens
from edgellm.engine.context import Context
from edgellm.engine.control_texts import ControlTexts
from edgellm.engine.conversation import Conversations
from edgellm.engine.reasoning import ReasoningFormat, reasoning_format
from edgellm.engine.template import ChatTemplate
from edgellm.engine.text import ReplyText
from edgellm.errors import EdgeError, InvalidRequest

LONG = 100_000  # characters that are tokenised sooner than a vocabulary is first read for its longest tokens


class EncodedPrompt(msgspec.Struct, frozen=True):
    """A prompt as token ids, and what the reply to it is like.

    reasoning        the format of the model's thoughts, where it may have any in this reply
    started_inside   the prompt ends within the thoughts
    continued        and in the middle of a text: the reply's first white space is part of it
    keep             tokens at the beginning that a sliding context keeps: BOS, and the system's part of a conversation
    dropped          tokens of old turns that were left out for the rest to fit
    """

    tokens: list[int]
    reasoning: ReasoningFormat | None = None
    started_inside: bool = False
    continued: bool = False
    keep: int = 0
    dropped: int = 0

    def reply(self, tokenizer: Tokenizer, stop: tuple[str, ...]) -> ReplyText:
        """For the text of one reply."""
        return ReplyText(tokenizer, stop, self.reasoning, self.started_inside, continued=self.continued)


class PromptEncoder:
    """Encodes prompts for one model. May be used from any thread."""

    def __init__(self, tokenizer: Tokenizer, context: Context | None = None) -> None:
        """Cheap: the template is compiled when first needed, or by `prepare`.

        What is certain to have no room in `context` is refused before it is tokenised.
        """
        self._tokenizer = tokenizer
        self._context = context
        self._chat: Conversations | EdgeError | None = None
        self._lock = threading.Lock()

    def prepare(self) -> None:
        """Compile the template ahead of the first conversation. A bad one is reported when a conversation comes."""
        try:
            self._conversations()
        except EdgeError:
            pass

    def encode(self, prompt: Prompt, fit: int | None = None) -> EncodedPrompt:
        """Token ids, with exactly one BOS where the model wants one.

        Messages    through the chat template; a last assistant turn is left open, to be continued
        Text        control texts in it are recognised
        Tokens      as they are

        With `fit`, what is oldest is left out until so many tokens are left, as far as that goes: of a conversation
        whole turns after the system's, of the rest tokens after BOS.

        Raises InvalidRequest for what the prompt is to blame for, `param` saying where; ContextExceeded for what is far
        too long, where nothing may be left out; BadModelFile for a bad template.
        """
        match prompt:
            case Messages(messages, options):
                _check_messages(messages)
                return self._fitted(messages, options, fit)
            case Text(text):
                _check_text(text, "the prompt", "prompt")
                if fit is None:
                    self._check_room([text])
                return self._cut(self._started(self._tokenizer.encode(text, special=True)), fit)
            case Tokens(ids):
                return self._cut(self._checked(ids) or self._started([]), fit)

    # -- conversations ---------------------------------------------------------------------------

    def _fitted(self, messages: Sequence[Message], options: TemplateOptions, fit: int | None) -> EncodedPrompt:
        if fit is None:
            return self._conversation(messages, options, may_be_cut=False)
        whole = self._conversation(messages, options)
        lead = next((index for index, message in enumerate(messages) if message.role != "system"), len(messages))
        kept = whole
        if len(whole.tokens) > fit:
            # Only before a user turn: many templates want user and assistant to alternate, and an answer without its
            # question is worth little.
            cuts = [index for index in range(lead + 1, len(messages)) if messages[index].role == "user"]
            kept = self._fewest_left_out(messages, lead, cuts, options, fit) or whole
        keep = self._system_part(messages[:lead], options, kept.tokens)
        return replace(kept, keep=keep, dropped=len(whole.tokens) - len(kept.tokens))

    def _fewest_left_out(
        self, messages: Sequence[Message], lead: int, cuts: Sequence[int], options: TemplateOptions, fit: int
    ) -> EncodedPrompt | None:
        """Without what lies between `lead` and the first of `cuts` with which it fits, or the last; None: no cuts."""
        found: dict[int, EncodedPrompt] = {}

        def fits(cut: int) -> bool:
            found[cut] = self._conversation((*messages[:lead], *messages[cut:]), options)
            return len(found[cut].tokens) <= fit

        at = bisect_left(cuts, True, key=fits)
        return found[cuts[min(at, len(cuts) - 1)]] if cuts else None

    def _system_part(self, system: Sequence[Message], options: TemplateOptions, tokens: list[int]) -> int:
        """How many of `tokens`, from the beginning, are there whatever a user says."""
        same = len(tokens) - 1
        for probe in ("x", "1"):  # what was said differs from one of them at once
            try:
                other = self._conversation((*system, Message("user", probe)), options).tokens
            except InvalidRequest:
                return int(tokens[0] == self._tokenizer.bos)
            differ = (at for at, (one, two) in enumerate(zip(tokens, other, strict=False)) if one != two)
            same = min(same, next(differ, same))
        return same

    def _conversation(
        self, messages: Sequence[Message], options: TemplateOptions, may_be_cut: bool = True
    ) -> EncodedPrompt:
        rendered = self._conversations().render(messages, options)
        if not may_be_cut:
            self._check_room(text for text, _ in rendered.stretches)
        ids = [
            token
            for stretch, special in rendered.stretches
            if stretch
            for token in self._tokenizer.encode(stretch, special=special)
        ]
        return EncodedPrompt(self._started(ids), rendered.reasoning, rendered.started_inside, rendered.continued)

    def _conversations(self) -> Conversations:
        with self._lock:
            if self._chat is None:
                try:
                    self._chat = self._compiled()
                except EdgeError as error:
                    self._chat = error
            if isinstance(self._chat, EdgeError):
                raise EdgeError.from_info(self._chat.info)
            return self._chat

    def _compiled(self) -> Conversations:
        source = self._tokenizer.chat_template
        if not source or not source.strip():
            raise InvalidRequest(
                "this model has no chat template: it continues text and was not taught to hold conversations",
                hint="send text to /v1/completions, or pick a model tuned for chat (often named -instruct or -it)",
                param="messages",
            )
        template = ChatTemplate(source, self._text_of(self._tokenizer.bos), self._text_of(self._tokenizer.eos))
        control = ControlTexts(self._tokenizer.special_texts)
        return Conversations(template, control, reasoning_format(source, self._tokenizer))

    def _text_of(self, token: int | None) -> str:
        return "" if token is None else self._tokenizer.token_text(token)

    def _check_room(self, texts: Iterable[str]) -> None:
        """Raise ContextExceeded where even the fewest tokens that `texts` can be have no room."""
        texts = list(texts)
        if self._context is None or sum(map(len, texts)) < LONG:
            return
        first = self._text_of(self._tokenizer.bos)  # of several at the start one is kept
        fewest = sum(self._tokenizer.fewest(text.replace(first, "") if first else text) for text in texts)
        if fewest >= self._context.tokens:
            raise self._context.exceeded(fewest, at_least=True)

    # -- ids -------------------------------------------------------------------------------------

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

    def _cut(self, ids: list[int], fit: int | None) -> EncodedPrompt:
        """`ids` without its oldest, as far as they do not fit."""
        keep = int(ids[0] == self._tokenizer.bos)
        dropped = 0 if fit is None else min(max(0, len(ids) - fit), len(ids) - keep - 1)
        return EncodedPrompt(ids[:keep] + ids[keep + dropped :] if dropped else ids, keep=keep, dropped=max(0, dropped))


def _check_messages(messages: Sequence[Message]) -> None:
    if not messages:
        raise InvalidRequest("the conversation has no messages", param="messages")
    for index, message in enumerate(messages):
        _check_text(message.content, f"message {index}", f"messages[{index}].content")
        _check_text(message.name or "", f"the name in message {index}", f"messages[{index}].name")


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
