"""What a conversation remembers, and the request it makes of it. No input, no output."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from edgellm.contracts.request import GenerateRequest, Message, Messages, Prompt, Sampling, Text
from edgellm.errors import UNREADABLE, InvalidRequest
from edgellm.library.manifest import Manifest
from edgellm.platform import write_private
from edgellm.small_files import read_small
from edgellm.wishes import Wishes

FORM = 1
_LARGEST = 64 << 20  # bytes of a saved conversation


class Saved(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A conversation as a file."""

    form: int
    model: str
    system: str | None = None
    messages: tuple[Message, ...] = ()


class Conversation:
    """One model, what was said, and how answers are to be made. `base` holds all of a request but the prompt."""

    def __init__(self, manifest: Manifest, base: GenerateRequest, system: str | None) -> None:
        self.manifest = manifest
        self.base = base
        self.wishes = Wishes(
            preset=base.preset, sampling=base.sampling, max_tokens=base.max_tokens, system=system or None
        )
        self.messages: list[Message] = []

    @property
    def name(self) -> str:
        return str(self.manifest.full_name)

    @property
    def chats(self) -> bool:
        """Whether the model knows turns. One that does not continues text, and remembers nothing."""
        return self.manifest.summary.has_chat_template

    def request(self, question: str) -> GenerateRequest:
        """What to send for the next question. The conversation stays as it is until `answered`."""
        prompt: Prompt = Text(question)
        if self.chats:
            prompt = Messages(self.wishes.before((*self.messages, Message("user", question))))
        return self.wishes.upon(msgspec.structs.replace(self.base, prompt=prompt))

    def answered(self, question: str, answer: str) -> None:
        """Remember a turn; one without an answer did not happen."""
        if answer:
            self.messages += [Message("user", question), Message("assistant", answer)]

    def take_back(self) -> str | None:
        """Forget the last turn; its question, or None when there is none."""
        if len(self.messages) < 2:
            return None
        question = self.messages[-2].content
        del self.messages[-2:]
        return question

    def set(self, name: str, text: str) -> None:
        """Change a setting; "default" takes the change back. Raises InvalidRequest."""
        wishes = self.wishes.changed(name, text)
        if name == "system" and not self.chats:
            raise InvalidRequest(f"{self.name} has no chat template, so a system prompt has no place")
        self.wishes = wishes

    def settings(self) -> dict[str, Any]:
        """What is set here, by name; None where the model's card or the settings decide."""
        return self.wishes.values()

    def recommended(self) -> Sampling:
        """What the model's card recommends."""
        return self.manifest.sampling

    def save(self, file: Path) -> None:
        """Write it to a file that only this user may read; only over another saved one. Raises InvalidRequest."""
        _refuse_other(file)
        saved = Saved(form=FORM, model=self.name, system=self.wishes.system, messages=tuple(self.messages))
        try:
            write_private(file, msgspec.json.format(msgspec.json.encode(saved), indent=2) + b"\n")
        except (OSError, ValueError) as error:  # ValueError: a path no system takes
            raise InvalidRequest(f"{file} cannot be written: {_why(error)}") from error

    def load(self, file: Path) -> str:
        """Go on with a saved conversation; the model it was held with. Raises InvalidRequest, and then changes nothing.

        This conversation's model answers from here on, whichever that was.
        """
        saved = _saved(file)
        if saved.form != FORM:
            raise InvalidRequest(f"{file} is of form {saved.form}, this edgellm reads {FORM}")
        self.wishes = msgspec.structs.replace(self.wishes, system=saved.system)
        self.messages = list(saved.messages)
        return saved.model


def _saved(file: Path) -> Saved:
    """What the file holds. Raises InvalidRequest: also for what has no end, or blocks, when it is read."""
    try:
        return msgspec.json.decode(read_small(file, _LARGEST), type=Saved)
    except UNREADABLE as error:
        raise InvalidRequest(f"{file} is no saved conversation: {error}", hint="/save writes one") from error
    except (OSError, ValueError) as error:
        raise InvalidRequest(f"{file} cannot be read: {_why(error)}") from error


def _refuse_other(file: Path) -> None:
    """Raise InvalidRequest where something else would be lost."""
    try:
        if not file.exists() or (file.is_file() and file.stat().st_size == 0):
            return
        _saved(file)
    except (OSError, ValueError):  # writing says why it cannot be
        return
    except InvalidRequest as error:
        told = f"{file} is there already, and is no saved conversation"
        raise InvalidRequest(told, hint="name another file") from error


def _why(error: OSError | ValueError) -> object:
    return getattr(error, "strerror", None) or error
