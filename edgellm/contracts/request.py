"""What is asked of a model."""

from __future__ import annotations

from typing import Literal

import msgspec

Role = Literal["system", "user", "assistant", "tool"]


class Message(msgspec.Struct, frozen=True, omit_defaults=True):
    """One turn of a conversation, text only."""

    role: Role
    content: str
    name: str | None = None


class Messages(msgspec.Struct, frozen=True, tag="messages"):
    """A conversation, rendered through the model's own chat template."""

    messages: tuple[Message, ...]


class Text(msgspec.Struct, frozen=True, tag="text"):
    """Raw text to continue; special tokens in it are recognised, BOS is added when the model wants it."""

    text: str


class Tokens(msgspec.Struct, frozen=True, tag="tokens"):
    """Token ids to continue, taken as they are."""

    ids: tuple[int, ...]


Prompt = Messages | Text | Tokens


class Sampling(msgspec.Struct, frozen=True, omit_defaults=True):
    """How the next token is chosen. None means: not said here, ask the next layer (model card, preset).

    Order of the chain: top-k, top-p (keep a token while the mass before it is below p), temperature, draw.
    """

    temperature: float | None = None  # >= 0; 0 is argmax
    top_p: float | None = None  # (0, 1]
    top_k: int | None = None  # >= 0; 0 keeps all
    seed: int | None = None  # 64 bit; None draws one

    def over(self, lower: Sampling) -> Sampling:
        """This layer above `lower`: what is said here wins."""
        pick = {
            f: getattr(self, f) if getattr(self, f) is not None else getattr(lower, f) for f in self.__struct_fields__
        }
        return Sampling(**pick)


class GenerateRequest(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One request for one answer. Validated at the edge; everything below trusts it."""

    id: str
    model: str  # a name, as the user wrote it
    prompt: Prompt
    sampling: Sampling = Sampling()
    max_tokens: int | None = None  # None: until the model stops or the context is full
    stop: tuple[str, ...] = ()
    priority: int = 0  # lower is served first
    cache_key: str = ""  # only requests of the same key share cached prefixes
    timeout_s: float | None = None  # whole answer, queueing included
    keep_alive_s: float | None = None  # how long the model stays loaded after; None: the setting; < 0: forever
