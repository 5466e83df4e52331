"""schemathesis over the OpenAPI document: requests that it allows and requests that it forbids, against a server."""

from __future__ import annotations

from typing import Any, NamedTuple

import requests
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from schemathesis.generation import GenerationMode
from schemathesis.openapi.checks import RejectedPositiveData

from edgellm.server.openapi import OPERATIONS, document

# Its Structs carry no ranges; what is out of range is a 400 that the document names.
RANGES_UNSAID = "/edgellm/v1/generate"


class Described(NamedTuple):
    method: str
    path: str

    def __str__(self) -> str:
        return f"{self.method} {self.path}"


def operations() -> list[Described]:
    return [Described(*one) for one in OPERATIONS]


def violations(url: str, operation: Described, *, model: str, examples: int) -> list[str]:
    """What the server did that the document does not say. Requests that name a model name `model`, mostly."""
    schema = schemathesis.openapi.from_dict(document(keys=False))
    described = schema[operation.path][operation.method]
    found: dict[str, str] = {}
    with requests.Session() as session:
        session.trust_env = False
        for mode in (GenerationMode.POSITIVE, GenerationMode.NEGATIVE):

            @settings(
                max_examples=examples,
                derandomize=True,
                database=None,
                deadline=None,
                phases=[Phase.generate],
                suppress_health_check=list(HealthCheck),
            )
            @given(case=described.as_strategy(generation_mode=mode))
            def one(case: Any) -> None:
                if isinstance(case.body, dict) and isinstance(case.body.get("model"), str) and len(case.body) % 4:
                    case.body["model"] = model
                response = case.call(base_url=url, session=session, timeout=60)
                try:
                    case.validate_response(response)
                except schemathesis.core.failures.FailureGroup as group:
                    for failure in group.exceptions:
                        if not _expected(operation, failure):
                            found.setdefault(f"{type(failure).__name__} {response.status_code}", f"{failure}"[:500])

            if mode is GenerationMode.POSITIVE or described.body or described.path_parameters:
                one()
    return [f"{kind}: {text}" for kind, text in found.items()]


def _expected(operation: Described, failure: BaseException) -> bool:
    return operation.path == RANGES_UNSAID and isinstance(failure, RejectedPositiveData)
