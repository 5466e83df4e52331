"""The fields of a request that say how tokens are chosen, in their ranges: for every dialect."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from msgspec import Meta

from edgellm.contracts.ranges import (
    Count,
    CountOrZero,
    LookBack,
    Penalty,
    PositiveShare,
    Repeat,
    Share,
    Temperature,
    Token,
)
from edgellm.contracts.request import GenerateRequest, Sampling
from edgellm.errors import InvalidRequest
from edgellm.server.complaints import invalid

CHOICES = 16  # answers to one request
ALTERNATIVES = 20  # tokens named beside each
BIASES = 4096  # entries of logit_bias

Breakers = Annotated[list[Annotated[str, Meta(min_length=1, max_length=100)]], Meta(max_length=32)]
Bias = dict[Token, Annotated[float, Meta(ge=-100, le=100)]]
Choices = Annotated[int, Meta(ge=1, le=CHOICES)]
Alternatives = Annotated[int, Meta(ge=0, le=ALTERNATIVES)]


class SamplingFields(msgspec.Struct, kw_only=True):
    """The fields of `Sampling`, by the same names, in their ranges. Null is the same as absent."""

    temperature: Temperature | None = None
    top_p: PositiveShare | None = None
    top_k: CountOrZero | None = None
    seed: int | None = None  # 64 bits, signed or not
    min_p: Share | None = None
    typical_p: PositiveShare | None = None
    logit_bias: Bias | None = None
    repeat_penalty: Repeat | None = None
    repeat_last_n: LookBack | None = None
    presence_penalty: Penalty | None = None
    frequency_penalty: Penalty | None = None
    dry_multiplier: Annotated[float, Meta(ge=0, le=100)] | None = None
    dry_base: Annotated[float, Meta(ge=1, le=100)] | None = None
    dry_allowed_length: Count | None = None
    dry_last_n: LookBack | None = None
    dry_breakers: Breakers | None = None
    xtc_probability: Share | None = None
    xtc_threshold: Share | None = None
    mirostat: int | None = None
    mirostat_tau: Annotated[float, Meta(gt=0, le=100)] | None = None
    mirostat_eta: PositiveShare | None = None


def sampling_of(fields: SamplingFields) -> Sampling:
    """What was said of sampling. Raises InvalidRequest for what ranges cannot express."""
    said: dict[str, Any] = {name: getattr(fields, name) for name in Sampling.__struct_fields__}
    if fields.mirostat not in (None, 0, 2):
        raise InvalidRequest("mirostat must be 0 or 2", hint="version 1 is not offered", param="mirostat")
    if fields.seed is not None and not -(2**63) <= fields.seed < 2**64:
        raise InvalidRequest("seed must fit 64 bits", param="seed")
    if fields.logit_bias is not None and len(fields.logit_bias) > BIASES:
        raise InvalidRequest(f"logit_bias takes at most {BIASES:,} tokens", param="logit_bias")
    if fields.dry_breakers is not None:
        said["dry_breakers"] = tuple(fields.dry_breakers)
    return Sampling(**said)


def check_sampling(request: GenerateRequest) -> None:
    """Raises InvalidRequest, naming the field, where a value is out of range."""
    try:
        fields = msgspec.convert(msgspec.structs.asdict(request.sampling), SamplingFields)
    except msgspec.ValidationError as error:
        raise invalid(error, SamplingFields) from error
    sampling_of(fields)
    for name, value, low, high in (
        ("n", request.n, 1, CHOICES),
        ("best_of", request.best_of, 0, CHOICES),
        ("logprobs", request.logprobs or 0, 0, ALTERNATIVES),
    ):
        if not low <= value <= high:
            raise InvalidRequest(f"{name} must be between {low} and {high}", param=name)
    check_best_of(request.n, request.best_of or request.n)


def check_best_of(n: int, best_of: int) -> None:
    """Raises InvalidRequest where fewer are generated than are to be answered."""
    if best_of < n:
        raise InvalidRequest("best_of must not be below n", param="best_of")
