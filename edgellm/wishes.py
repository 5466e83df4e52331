"""What a person wants of answers: sampling, length, instructions. One table for all who offer to set them."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from msgspec import Meta

from edgellm.contracts.ranges import Count, CountOrZero, Penalty, PositiveShare, Repeat, Share, Temperature
from edgellm.contracts.request import GenerateRequest, Message, Sampling
from edgellm.errors import InvalidRequest
from edgellm.presets import NAMES, PresetName

_DEFAULT = ("default", "none", "")
_LARGEST_SEED = (1 << 63) - 1
_COUNT = "a whole number below 2^31"


class Setting(msgspec.Struct, frozen=True):
    """Something that can be set: what it takes, and what it means."""

    hint: Any
    takes: str
    meaning: str


SAMPLING: dict[str, Setting] = {
    "temperature": Setting(Temperature, "0 or more", "randomness; 0 takes the likeliest"),
    "top_p": Setting(PositiveShare, "above 0, to 1", "keep the likeliest up to this probability"),
    "top_k": Setting(CountOrZero, _COUNT, "keep this many of the likeliest; 0 keeps all"),
    "min_p": Setting(Share, "0 to 1", "keep those at least this likely, beside the best"),
    "repeat_penalty": Setting(Repeat, "0.01 to 100", "what was said becomes less likely; 1 is none"),
    "presence_penalty": Setting(Penalty, "-2 to 2", "taken off for a token that was there"),
    "frequency_penalty": Setting(Penalty, "-2 to 2", "taken off for every time it was"),
    "seed": Setting(Annotated[int, Meta(ge=0, le=_LARGEST_SEED)], "a whole number", "same seed, same answer"),
}
MAX_TOKENS = Setting(Count, f"{_COUNT}, 1 or more", "longest answer, in tokens")
STOP = Setting(str, "text", "end the answer before this")
PRESET = Setting(PresetName, "one of " + ", ".join(NAMES), "sampling for a kind of task")
SYSTEM = Setting(str, "text", "instructions that come first")
SETTINGS: dict[str, Setting] = {"preset": PRESET, **SAMPLING, "max_tokens": MAX_TOKENS, "stop": STOP, "system": SYSTEM}


class Wishes(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What is set; None where the model's card or the settings decide."""

    preset: str | None = None
    sampling: Sampling = Sampling()
    max_tokens: int | None = None
    stop: str | None = None  # beside what a request has of its own
    system: str | None = None

    def changed(self, name: str, text: str) -> Wishes:
        """With one of them set to what `text` says; "default" takes it back. Raises InvalidRequest with the way out."""
        setting = SETTINGS.get(name)
        if setting is None:
            raise InvalidRequest(f"there is nothing named {name} to set", hint="there is " + ", ".join(SETTINGS))
        value = None if text.strip().lower() in _DEFAULT else _value(name, setting, text)
        if name in SAMPLING:
            return msgspec.structs.replace(self, sampling=msgspec.structs.replace(self.sampling, **{name: value}))
        return msgspec.structs.replace(self, **{name: value})

    def values(self) -> dict[str, Any]:
        """By name, in the order of the table."""
        return {name: getattr(self.sampling if name in SAMPLING else self, name) for name in SETTINGS}

    def upon(self, request: GenerateRequest) -> GenerateRequest:
        """The request with all of it but the instructions, which belong into its prompt."""
        stop = request.stop if self.stop is None else (*request.stop, self.stop)
        return msgspec.structs.replace(
            request, sampling=self.sampling, preset=self.preset, max_tokens=self.max_tokens, stop=stop
        )

    def before(self, messages: tuple[Message, ...]) -> tuple[Message, ...]:
        """The messages, after the instructions if there are any."""
        return (Message("system", self.system), *messages) if self.system else messages


def wanted(rest: str) -> tuple[str, str]:
    """Name and value of what follows `/set`. Raises InvalidRequest without a value: an empty one would take it back."""
    name, _, text = rest.removeprefix("parameter ").strip().partition(" ")  # as others write it
    if not text.strip() and name in SETTINGS:
        hint = f"/set {name} takes {SETTINGS[name].takes}; `/set {name} default` takes it back"
        raise InvalidRequest(f"say what {name} shall be", hint=hint)
    return name, text.strip()


def _value(name: str, setting: Setting, text: str) -> Any:
    if setting.hint is str:
        return text.strip()
    try:
        return msgspec.convert(text.strip(), setting.hint, strict=False)
    except msgspec.ValidationError as error:
        raise InvalidRequest(f"{name} cannot be {text.strip()!r}", hint=f"{name} takes {setting.takes}") from error
