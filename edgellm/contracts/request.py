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


TemplateOptions = dict[str, bool | int | float | str]  # names that chat templates read, `enable_thinking` say


class Messages(msgspec.Struct, frozen=True, tag="messages", omit_defaults=True):
    """A conversation, rendered through the model's own chat template. An assistant's turn at its end is continued."""

    messages: tuple[Message, ...]
    options: TemplateOptions = {}


class Text(msgspec.Struct, frozen=True, tag="text"):
    """Raw text to continue; special tokens in it are recognised, BOS is added when the model wants it."""

    text: str


class Tokens(msgspec.Struct, frozen=True, tag="tokens"):
    """Token ids to continue, taken as they are."""

    ids: tuple[int, ...]


Prompt = Messages | Text | Tokens


class Sampling(msgspec.Struct, frozen=True, omit_defaults=True):
    """How the next token is chosen. None means: not said here, ask the next layer (model card, preset).

    Order of the chain, the same on every engine:

        logit_bias, penalties (repeat, presence, frequency), DRY, top-k, typical-p, top-p (keep a token while the mass
        before it is below p), min-p, XTC, temperature, draw

    `mirostat` 2 replaces everything from top-k to XTC. Penalties and DRY look at prompt and answer alike.
    """

    temperature: float | None = None  # >= 0; 0 is argmax
    top_p: float | None = None  # (0, 1]
    top_k: int | None = None  # >= 0; 0 keeps all
    seed: int | None = None  # 64 bit; None draws one
    min_p: float | None = None  # [0, 1]; keep tokens at least this likely, relative to the likeliest; 0 keeps all
    typical_p: float | None = None  # (0, 1]; 1 keeps all (Meister et al., "Locally Typical Sampling", 2022)
    logit_bias: dict[int, float] | None = None  # added to the raw logits, by token id
    repeat_penalty: float | None = None  # > 0; 1 is none (Keskar et al., "CTRL", 2019)
    repeat_last_n: int | None = None  # tokens that penalties look back on; 0 none, -1 the whole context
    presence_penalty: float | None = None  # taken off once for a token that was there
    frequency_penalty: float | None = None  # and for every time it was
    dry_multiplier: float | None = None  # 0 is off: "don't repeat yourself", a penalty for continuing a repetition
    dry_base: float | None = None
    dry_allowed_length: int | None = None
    dry_last_n: int | None = None  # as repeat_last_n
    dry_breakers: tuple[str, ...] | None = None  # texts that end a repetition
    xtc_probability: float | None = None  # 0 is off: "exclude top choices"
    xtc_threshold: float | None = None
    mirostat: int | None = None  # 0 or 2 (Basu et al., "Mirostat", 2021)
    mirostat_tau: float | None = None  # the surprise to keep, bits
    mirostat_eta: float | None = None  # how fast

    def over(self, lower: Sampling) -> Sampling:
        """This layer above `lower`: what is said here wins."""
        pick = {
            f: getattr(self, f) if getattr(self, f) is not None else getattr(lower, f) for f in self.__struct_fields__
        }
        return Sampling(**pick)


class GenerateRequest(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One request for one answer, or for several to the same prompt. Validated at the edge; what is below trusts it."""

    id: str
    model: str  # a name, as the user wrote it
    prompt: Prompt
    sampling: Sampling = Sampling()
    preset: str | None = None  # a named set of values for what `sampling` leaves open; above the model's card
    max_tokens: int | None = None  # of each choice; None: until the model stops or the context is full
    stop: tuple[str, ...] = ()
    n: int = 1  # choices, numbered from 0
    best_of: int = 0  # choices generated, of which the n likeliest per token are answered; 0: n
    logprobs: int | None = None  # how many alternatives to name beside each token; None: no log probabilities
    drafts: bool = True  # may guess ahead where that pays; never changes the text
    sliding: bool = False  # may forget the oldest tokens when the context is full; the answer then says so (`Slid`)
    priority: int = 0  # lower is served first
    cache_key: str = ""  # only requests of the same key share cached prefixes
    timeout_s: float | None = None  # whole answer, queueing included
    keep_alive_s: float | None = None  # how long the model stays loaded after; None: the setting; < 0: forever
