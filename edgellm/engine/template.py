"""A model's chat template: a conversation in, the text the model was trained on out.

The template is Jinja source from the model file and is treated as hostile; template_sandbox.py holds it. It finds what
publishers count on: trimmed blocks, `break` and `continue`, `raise_exception`, `strftime_now`, `tojson` without HTML
escapes, `bos_token`, `eos_token`, `tools` and `documents` (none), undefined names that print as nothing.

System messages. Some templates refuse them, some drop them without a word, some take one at the start only. A template
is tried once with a marked system text; where the mark does not come through, system texts are joined, with a blank
line, to the user turn that follows (or else the one before; or else they become a user turn). The same is done with the
words of tools, which some templates take from no one, or only after a call of theirs. It is tried once more when a
template refuses a conversation that has any of these; empty answers, which some refuse, then are a space.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime
from functools import cached_property
from types import TracebackType
from typing import TYPE_CHECKING, Any

from edgellm.contracts.request import Message, TemplateOptions
from edgellm.errors import BadModelFile, EdgeError, InvalidRequest

if TYPE_CHECKING:
    import jinja2

    from edgellm.engine.template_sandbox import Sandbox

SOURCE_LIMIT = 1 << 20  # characters
RENDER_S = 1.0  # CPU seconds
COMPILE_S = 2.0
_PLAIN_SHARE = 0.1  # of them, in which a plain conversation has to be done
_ROOM = 1 << 20  # characters a template may add to twice the conversation
_MARKUP = 256  # and for each turn
_LONG = 1 << 16  # characters, with that for each turn: at a shorter conversation a template has no cause to be stopped
_ALLOWANCE = 256 << 20  # bytes a template may make in all, and as many times the conversation's characters
_PER_CHARACTER = 128
_REASON_LIMIT = 500  # characters of a template's own message

_PROBE = "edgellmprobe"
_PLAIN = (Message("user", "a"),)
_ALONE = (Message("system", _PROBE),)
_LEADING = (Message("system", _PROBE), *_PLAIN)
_LATER = (*_PLAIN, Message("assistant", "b"), Message("system", _PROBE), Message("user", "c"))
_TOOL = (*_PLAIN, Message("assistant", "b"), Message("tool", _PROBE))
_NO_OPTIONS: TemplateOptions = {}


class _TooMuch(InvalidRequest):
    """This conversation is what a template was stopped at; no other form of it is tried."""


class ChatTemplate:
    """A compiled chat template. Renders one conversation at a time, whatever the number of threads."""

    def __init__(
        self, source: str, bos_text: str, eos_text: str, *, now: Callable[[], datetime] = datetime.now
    ) -> None:
        """Compile `source`. Raises BadModelFile where it is too long, malformed, or uses what is not allowed."""
        self.source = source
        self._variables = {"bos_token": bos_text, "eos_token": eos_text, "tools": None, "documents": None}
        self._lock = threading.Lock()
        if len(source) > SOURCE_LIMIT:
            raise _bad(f"is longer than {SOURCE_LIMIT:,} characters")
        self._sandbox, self._compiled = self._compile(now)

    def render(
        self,
        messages: Sequence[Message],
        add_generation_prompt: bool = True,
        options: TemplateOptions = _NO_OPTIONS,
    ) -> str:
        """The conversation as text, ready for an answer when `add_generation_prompt`.

        `options` are names for the template to read; they do not reach its own.

        Raises InvalidRequest, with the template's own words, when it refuses this conversation or fails on it;
        BadModelFile when it fails on any, or runs into a limit.
        """
        turns = self._with_roles_it_takes(messages)
        try:
            return self._run(turns, add_generation_prompt, options)
        except _TooMuch:
            raise
        except InvalidRequest as first:
            folded = tuple(map(_with_a_word, _fold(turns)))
            if folded == tuple(turns):
                raise
            try:
                return self._run(folded, add_generation_prompt, options)
            except InvalidRequest as second:
                raise second from first

    def render_open(self, messages: Sequence[Message], options: TemplateOptions = _NO_OPTIONS) -> str:
        """A conversation up to where the text of its last turn, the assistant's, begins.

        A template that drops, repeats or refuses that turn is asked for the beginning of an answer instead; where the
        turn is the only one, after a user's empty one. Raises as `render` does.
        """
        *before, last = messages
        mark = spare_character([self.source, *(part for m in messages for part in (m.content, m.name or ""))])
        try:
            text = self.render((*before, Message(last.role, mark, last.name)), False, options)
        except _TooMuch:
            raise
        except InvalidRequest:
            text = ""
        if text.count(mark) == 1:
            return text[: text.index(mark)]
        return self.render(before or (Message("user", ""),), True, options)

    def _with_roles_it_takes(self, messages: Sequence[Message]) -> Sequence[Message]:
        roles = [message.role for message in messages]
        leading, later, tool = roles[:1] == ["system"], "system" in roles[1:], "tool" in roles
        keep_leading = leading and self._keeps_leading and ({*roles} != {"system"} or self._keeps_alone)
        keep_tool = tool and self._keeps_tool
        if (leading and not keep_leading) or (later and not self._keeps_later) or (tool and not keep_tool):
            return _fold(messages, keep_leading, keep_tool)
        return messages

    @cached_property
    def _keeps_alone(self) -> bool:
        return self._keeps(_ALONE)

    @cached_property
    def _keeps_leading(self) -> bool:
        return self._keeps(_LEADING)

    @cached_property
    def _keeps_later(self) -> bool:
        return self._keeps(_LATER)

    @cached_property
    def _keeps_tool(self) -> bool:
        return self._keeps(_TOOL)

    def _keeps(self, messages: Sequence[Message]) -> bool:
        try:
            return _PROBE in self._run(messages, True, _NO_OPTIONS)
        except EdgeError:
            return False

    @cached_property
    def _renders_a_plain_one(self) -> bool:
        try:
            self._run(_PLAIN, True, _NO_OPTIONS, _PLAIN_SHARE * RENDER_S)
        except BadModelFile:
            return False
        except InvalidRequest:
            pass
        return True

    def _run(
        self,
        messages: Sequence[Message],
        add_generation_prompt: bool,
        options: TemplateOptions,
        seconds: float | None = None,
    ) -> str:
        from edgellm.engine.template_limits import Meter, TemplateRefusal

        turns = [_plain(message) for message in messages]
        size = sum(len(message.content) for message in messages)
        with self._lock:
            most = 2 * size + _ROOM + _MARKUP * len(messages)
            meter = Meter(most, _ALLOWANCE + _PER_CHARACTER * size, seconds or RENDER_S)
            self._sandbox.meter = meter
            try:
                meter.weight(turns)
                own = {"messages": turns, "add_generation_prompt": add_generation_prompt, **self._variables}
                names = {name: value for name, value in options.items() if name not in self._sandbox.globals} | own
                context = self._compiled.new_context(names)
                return meter.joined(self._compiled.root_render_func(context))
            except TemplateRefusal as refusal:
                raise _refused(f"the model's chat template refuses this conversation: {_line(refusal)}") from refusal
            except Exception as error:  # a template can fail in any way
                failure: Exception = error
            finally:
                meter.forget()
        raise self._failed(failure, messages) from failure

    def _failed(self, error: Exception, messages: Sequence[Message]) -> EdgeError:
        """Whose fault: the conversation's when the template can render a plain one; of a limit, if it is long too."""
        from edgellm.engine.template_limits import TemplateLimit

        stopped = isinstance(error, TemplateLimit)
        where = _line_of(error.__traceback__, self._compiled)
        reason = f"was stopped: {error}" if stopped else f"fails{where}: {_line(error) or type(error).__name__}"
        long = sum(len(message.content) + _MARKUP for message in messages) > _LONG
        if tuple(messages) == _PLAIN or (stopped and not long) or not self._renders_a_plain_one:
            return _bad(reason)
        message = f"the model's chat template cannot render this conversation; it {reason}"
        if stopped:
            return _TooMuch(
                message, hint="send a shorter one; if that fails, too, the fault is in the model file", param="messages"
            )
        return _refused(message)

    def _compile(self, now: Callable[[], datetime]) -> tuple[Sandbox, jinja2.Template]:
        from jinja2 import TemplateSyntaxError

        from edgellm.engine.template_limits import Meter, TemplateLimit
        from edgellm.engine.template_sandbox import Sandbox

        sandbox = Sandbox(Meter(SOURCE_LIMIT, _ALLOWANCE, COMPILE_S), now)
        try:
            return sandbox, sandbox.from_string(self.source)
        except TemplateLimit as limit:
            raise _bad(f"is refused: {limit}") from limit
        except (RecursionError, MemoryError) as error:  # Jinja's compiler, or Python's parser
            raise _bad("is refused: it is nested too deeply") from error
        except Exception as error:  # a template can be broken in any way
            line = f" at line {error.lineno}" if isinstance(error, TemplateSyntaxError) else ""
            raise _bad(f"is malformed{line}: {_line(error)}") from error


def spare_character(texts: Iterable[str]) -> str:
    """A Unicode noncharacter that is in none of the texts, for marking places in them.

    U+FDD0..U+FDEF are set aside for the internal use of programs (Unicode 16.0, section 23.7). Raises InvalidRequest
    when the texts hold all of them.
    """
    texts = list(texts)
    for mark in map(chr, range(0xFDD0, 0xFDF0)):
        if not any(mark in text for text in texts):
            return mark
    raise InvalidRequest("the conversation contains every noncharacter from U+FDD0 to U+FDEF", param="messages")


def _plain(message: Message) -> dict[str, Any]:
    turn = {"role": message.role, "content": message.content}
    return turn if message.name is None else {**turn, "name": message.name}


def _fold(messages: Sequence[Message], keep_leading: bool = False, keep_tool: bool = False) -> tuple[Message, ...]:
    """The conversation with its system texts, and those of tools, moved into user turns."""
    out: list[Message] = []
    waiting: list[str] = []
    for index, message in enumerate(messages):
        if (message.role == "system" and not (keep_leading and index == 0)) or (
            message.role == "tool" and not keep_tool
        ):
            waiting += [message.content] * bool(message.content)
        elif message.role == "user":
            content = "\n\n".join([*waiting, message.content])
            out.append(Message("user", content, message.name))
            waiting = []
        else:
            _add_to_user(out, waiting)
            out.append(message)
            waiting = []
    _add_to_user(out, waiting)
    return tuple(out)


def _with_a_word(message: Message) -> Message:
    if message.role == "assistant" and not message.content:
        return Message(message.role, " ", message.name)
    return message


def _add_to_user(out: list[Message], texts: list[str]) -> None:
    if texts and out and out[-1].role == "user":
        texts = [out[-1].content, *texts]
        out[-1] = Message("user", "\n\n".join(texts), out[-1].name)
    elif texts:
        out.append(Message("user", "\n\n".join(texts)))


def _line(error: Exception) -> str:
    """An error's text on one line, without control characters, not too long."""
    text = " ".join("".join(c if c.isprintable() else " " for c in str(error)[: 2 * _REASON_LIMIT]).split())
    return text if len(text) <= _REASON_LIMIT else text[: _REASON_LIMIT - 1] + "…"


def _line_of(trace: TracebackType | None, compiled: jinja2.Template) -> str:
    line = None
    while trace is not None:
        if trace.tb_frame.f_code.co_filename == "<template>":
            line = compiled.get_corresponding_lineno(trace.tb_lineno)
        trace = trace.tb_next
    return "" if line is None else f" at line {line}"


def _refused(reason: str) -> InvalidRequest:
    return InvalidRequest(
        reason,
        hint="change the order or the roles of the messages to what the model expects",
        param="messages",
    )


def _bad(reason: str) -> BadModelFile:
    return BadModelFile(
        f"the model's chat template {reason}",
        hint="the fault is in the model file; text completions (/v1/completions) do without its template",
    )
