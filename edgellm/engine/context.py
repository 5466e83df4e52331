"""How long a text one model takes, and what is said to whom it is too short."""

from __future__ import annotations

import msgspec

from edgellm.errors import ContextExceeded


class Context(msgspec.Struct, frozen=True):
    """`trained`: for contexts up to so many tokens, if known."""

    model: str
    tokens: int
    trained: int | None = None

    def exceeded(self, prompt: int, *, at_least: bool = False) -> ContextExceeded:
        """By a prompt of so many tokens."""
        told = f"at least {prompt:,}" if at_least else f"{prompt:,}"
        takes = f"{self.model} takes {self.tokens:,}"
        if not at_least and prompt == self.tokens:
            takes += ", and an answer needs one of them"
        return ContextExceeded(f"the prompt has {told} tokens; {takes}", hint=self._way_out(), param="messages")

    def _way_out(self) -> str:
        """A longer context only where the model was trained for that."""
        if self.trained is None:
            return "shorten it, raise the context (--context) if the model was trained for more, or pick another model"
        if self.tokens < self.trained:
            return f"shorten it, or raise the context (--context), up to the {self.trained:,} it was trained for"
        return "shorten it, or pick a model with a longer context: it was trained for no more"
