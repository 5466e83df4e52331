"""What begins with a slash in a conversation."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import msgspec

from edgellm.cli.output import Output
from edgellm.cli.talk.conversation import Conversation
from edgellm.errors import InvalidRequest
from edgellm.paths import expanded
from edgellm.slash import find, require_fitting
from edgellm.units import number, size
from edgellm.wishes import SETTINGS, wanted


class Call(msgspec.Struct, frozen=True):
    """A command as it was typed: `rest` is what follows its name."""

    conversation: Conversation
    rest: str
    output: Output


class Command(msgspec.Struct, frozen=True):
    """A text that `run` returns is asked next."""

    usage: str
    meaning: str
    run: Callable[[Call], str | None]


class Leave(Exception):
    """The user says goodbye."""


def execute(name: str, rest: str, conversation: Conversation, output: Output) -> str | None:
    """Do what was typed; a question to ask next, or None. Raises Leave, and InvalidRequest with the way out."""
    command = find(name, COMMANDS, ALIASES)
    require_fitting(name, rest, command.usage, command.meaning)
    return command.run(Call(conversation, rest, output))


def _help(call: Call) -> None:
    call.output.facts({command.usage: command.meaning for command in COMMANDS.values()})
    call.output.note("")
    call.output.facts(
        {
            '"""': "begins and ends a message of several lines",
            "@notes.md": 'the text of that file goes along; @"with spaces.txt"',
            "Alt+Enter, Ctrl+J": "a new line",
            "Up": "what was typed before, also in earlier conversations",
            "Ctrl+C": "stops an answer, or clears the line",
            "Ctrl+D": "leaves",
        }
    )


def _set(call: Call) -> None:
    if not call.rest:
        values = call.conversation.settings()
        call.output.facts({name: _told(values[name], setting.meaning) for name, setting in SETTINGS.items()})
        return
    name, text = wanted(call.rest)
    call.conversation.set(name, text)
    value = call.conversation.settings()[name]
    call.output.note(f"{name} is {'as recommended again' if value is None else value}")


def _show(call: Call) -> None:
    summary = call.conversation.manifest.summary
    said = len(call.conversation.messages) // 2
    set_here = {name: str(value) for name, value in call.conversation.settings().items() if value is not None}
    recommended = {
        name: f"{value} (recommended)"
        for name, value in msgspec.structs.asdict(call.conversation.recommended()).items()
        if value is not None and name in SETTINGS
    }
    call.output.facts(
        {
            "model": f"{call.conversation.name}, {summary.quantization}, {size(call.conversation.manifest.size)}",
            "trained for": f"{number(summary.context)} tokens" if summary.context else "not said in the file",
            "conversation": f"{number(said)} {'turn' if said == 1 else 'turns'}",
            **recommended,
            **set_here,
        }
    )


def _clear(call: Call) -> None:
    call.conversation.messages.clear()
    call.output.note("cleared: the next question begins a new conversation")


def _retry(call: Call) -> str:
    question = call.conversation.take_back()
    if question is None:
        raise InvalidRequest("nothing was asked yet")
    return question


def _save(call: Call) -> None:
    file = _file(call.rest, "/save")
    call.conversation.save(file)
    call.output.note(f"saved to {file}")


def _load(call: Call) -> None:
    file = _file(call.rest, "/load")
    model = call.conversation.load(file)
    said = len(call.conversation.messages) // 2
    other = "" if model == call.conversation.name else f", held with {model}; {call.conversation.name} goes on"
    call.output.note(f"{number(said)} {'turn' if said == 1 else 'turns'} from {file}{other}")


def _bye(_: Call) -> None:
    raise Leave


def _file(text: str, command: str) -> Path:
    if not text:
        raise InvalidRequest("name a file", hint=f"{command} talk.json")
    return expanded(text).absolute()


def _told(value: object, meaning: str) -> str:
    return meaning if value is None else f"{value} · {meaning}"


COMMANDS: dict[str, Command] = {
    "/help": Command("/help", "this", _help),
    "/set": Command("/set NAME VALUE", "change " + ", ".join(SETTINGS), _set),
    "/show": Command("/show", "the model, and what is set", _show),
    "/clear": Command("/clear", "forget what was said", _clear),
    "/retry": Command("/retry", "ask the last question again", _retry),
    "/save": Command("/save FILE", "keep this conversation", _save),
    "/load": Command("/load FILE", "go on with one that was kept", _load),
    "/bye": Command("/bye", "leave", _bye),
}
ALIASES = {"/?": "/help", "/exit": "/bye", "/quit": "/bye"}
