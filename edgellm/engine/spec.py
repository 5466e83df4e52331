"""Sampling as asked -> SampleSpec as run: every value said, and nothing that the engine would pass over in silence."""

from __future__ import annotations

from typing import Any

from edgellm.contracts.engine import Tokenizer
from edgellm.contracts.request import GenerateRequest, Sampling
from edgellm.contracts.runner import RunnerInfo, SampleSpec
from edgellm.engine.breakers import breaker_tokens
from edgellm.errors import InvalidRequest
from edgellm.plugins import title

_NEUTRAL: dict[str, Any] = {
    field: getattr(SampleSpec(), field) for field in SampleSpec.__struct_fields__ if field in Sampling.__struct_fields__
}


def sample_spec(request: GenerateRequest, info: RunnerInfo, tokenizer: Tokenizer, choice: int) -> SampleSpec:
    """What one choice of a request is sampled with. Raises InvalidRequest."""
    sampling = request.sampling
    said = {field: getattr(sampling, field) for field in _NEUTRAL}
    values = {field: _NEUTRAL[field] if value is None else value for field, value in said.items()}
    logprobs = 0 if request.logprobs is None and request.best_of > request.n else request.logprobs
    _refuse_unknown(values | {"logprobs": logprobs}, info)
    for token in values["logit_bias"]:
        if not 0 <= token < tokenizer.vocabulary_size:
            raise InvalidRequest(
                f"logit_bias names token {token}; this model has tokens 0 to {tokenizer.vocabulary_size - 1}",
                param="logit_bias",
            )
    values["dry_breakers"] = breaker_tokens(sampling, tokenizer)
    return SampleSpec(**values | {"choice": choice, "logprobs": logprobs})


def _refuse_unknown(values: dict[str, Any], info: RunnerInfo) -> None:
    for field, value in values.items():
        if field not in info.samplers and value != _NEUTRAL.get(field):
            what = "gives no log probabilities" if field == "logprobs" else f"has no sampler for {field}"
            raise InvalidRequest(f"the {title(info.engine)} engine {what}", hint=f"leave {field} out", param=field)
