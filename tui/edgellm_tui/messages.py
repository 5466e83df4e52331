"""What the parts of the app tell each other. Widgets and the session send these; screens act on them."""

from __future__ import annotations

from textual.message import Message

from edgellm.contracts.events import Progress
from edgellm.library.staging import PullProgress
from edgellm_tui.records import Turn


class Submitted(Message):
    """The user has written a question."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.text = text


class Commanded(Message):
    """A message that begins with a slash: as it was written; the command's name, and what follows it."""

    def __init__(self, text: str, name: str, rest: str) -> None:
        super().__init__()
        self.text = text
        self.name = name
        self.rest = rest


class EmptySubmitted(Message):
    """Enter in an empty prompt: whatever the screen proposes."""


class TooEarly(Message):
    """Enter while an answer is coming."""


class Asked(Message):
    """A question is kept and about to be answered."""

    def __init__(self, turn: Turn) -> None:
        super().__init__()
        self.turn = turn


class AnswerBegan(Message):
    def __init__(self, turn: Turn) -> None:
        super().__init__()
        self.turn = turn


class AnswerMoved(Message):
    """Something happens before text comes, in the answer of turn `id`; `progress` is None while the daemon starts."""

    def __init__(self, id: int, progress: Progress | None) -> None:
        super().__init__()
        self.id = id
        self.progress = progress


class AnswerGrew(Message):
    """More of the thought, then more of the text. `thought_s`: how long it has thought, seconds."""

    def __init__(self, id: int, text: str, thought: str = "", thought_s: float = 0.0) -> None:
        super().__init__()
        self.id = id
        self.text = text
        self.thought = thought
        self.thought_s = thought_s


class AnswerEnded(Message):
    """The answer as it is kept."""

    def __init__(self, turn: Turn) -> None:
        super().__init__()
        self.turn = turn


class Failure(Message):
    """Something the user should know that belongs to no answer. `unasked`: a question that could not be kept."""

    def __init__(self, message: str, hint: str | None = None, unasked: str = "") -> None:
        super().__init__()
        self.message = message
        self.hint = hint
        self.unasked = unasked


class EarlierWanted(Message):
    """The reader has come to the top of what is shown."""


class ConversationChosen(Message):
    def __init__(self, conversation: int) -> None:
        super().__init__()
        self.conversation = conversation


class ModelChosen(Message):
    def __init__(self, name: str) -> None:
        super().__init__()
        self.name = name


class PullAsked(Message):
    def __init__(self, name: str) -> None:
        super().__init__()
        self.name = name


class PullMoved(Message):
    def __init__(self, name: str, progress: PullProgress) -> None:
        super().__init__()
        self.name = name
        self.progress = progress


class PullEnded(Message):
    """`error` is empty when the model is here now; a pull that was given up says so there."""

    def __init__(self, name: str, error: str = "") -> None:
        super().__init__()
        self.name = name
        self.error = error


class CopyAsked(Message):
    """The user wants this on the clipboard; `what` names it."""

    def __init__(self, text: str, what: str) -> None:
        super().__init__()
        self.text = text
        self.what = what
