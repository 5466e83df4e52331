"""schemathesis over the OpenAPI document: requests that it allows and requests that it forbids, against a server."""

from __future__ import annotations

from typing import Any, NamedTuple

import requests
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from schemathesis.core.failures import FailureGroup
from schemathesis.generation import GenerationMode
from schemathesis.openapi.checks import RejectedPositiveData

from edgellm.server.openapi import OPERATIONS, document

# What they take the schema cannot say: ranges that no Struct carries, what a model makes. Then a 400 is no violation.
MAY_REFUSE = ("/edgellm/v1/generate", "/v1/embeddings")
# A rule between two numbers, `best_of` and `n`, which JSON Schema cannot say but in words.
WORDS_ONLY = "best_of"
# What follows from the model and the clock, not from the request's form.
CIRCUMSTANCES = ("context_length_exceeded", "timeout")
# Where tokens are named, and the model's vocabulary says which there are.
VOCABULARY = ("prompt", "logit_bias", "dry_breakers", "dry_sequence_breakers")


class Described(NamedTuple):
    method: str
    path: str

    def __str__(self) -> str:
        return f"{self.method} {self.path}"


def operations() -> list[Described]:
    return [Described(*one) for one in OPERATIONS]


def violations(url: str, operation: Described, *, model: str, examples: int) -> list[str]:
    """What the server did that the document does not say. Requests that keep to it ask `model`, mostly."""
    schema = schemathesis.openapi.from_dict(document(keys=False))
    described = schema[operation.path][operation.method]
    found: dict[str, str] = {}
    options = settings(
        max_examples=examples,
        derandomize=True,
        database=None,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )

    def send(case: Any) -> None:
        response = case.call(base_url=url, session=session, timeout=60)
        try:
            case.validate_response(response)
        except FailureGroup as group:
            for failure in group.exceptions:
                if not isinstance(failure, RejectedPositiveData) or not _unsaid(operation, response):
                    kind = f"{type(failure).__name__} {response.status_code}"
                    found.setdefault(kind, f"{failure}"[:500] + f"\nsent: {case.body!r}\nheard: {response.text[:500]}")

    @options
    @given(case=described.as_strategy(generation_mode=GenerationMode.POSITIVE))
    def allowed(case: Any) -> None:
        if isinstance(case.body, dict) and len(case.body) % 4:
            case.body["model"] = model  # else only refusals would be seen
        send(case)

    @options
    @given(case=described.as_strategy(generation_mode=GenerationMode.NEGATIVE))
    def forbidden(case: Any) -> None:
        send(case)

    with requests.Session() as session:
        session.trust_env = False
        allowed()
        if described.body or described.path_parameters:
            forbidden()
    return [f"{kind}: {text}" for kind, text in found.items()]


def _unsaid(operation: Described, response: Any) -> bool:
    error = response.json()["error"]
    named = str(error["param"]).split("[")[0]
    return operation.path in MAY_REFUSE or named in (WORDS_ONLY, *VOCABULARY) or error["code"] in CIRCUMSTANCES
