"""The OpenAPI document: every route, what it takes and what it answers.

Schemas come from the very Structs that decode requests. Fields that are not supported yet are described as what they
are: fields that take their neutral values only. A test holds this table against the routes, and schemathesis holds the
document against the daemon.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from edgellm import __version__
from edgellm.contracts.events import Event
from edgellm.contracts.ranges import MOST
from edgellm.errors import by_code
from edgellm.presets import NAMES
from edgellm.server import openapi_schemas as shapes
from edgellm.server import template_options
from edgellm.server.embeddings import INPUTS, EmbeddingsBody
from edgellm.server.native import PREFIX as NATIVE
from edgellm.server.native import GenerateBody, ShutdownBody, StopBody
from edgellm.server.openai_bodies import (
    ALIASES,
    ROLES,
    STOPS,
    ChatBody,
    ChatMessage,
    CompletionBody,
    Part,
    neutral_values,
)
from edgellm.server.sampling_fields import BIASES

Document = dict[str, Any]
JSON = "application/json"
_REF = "#/components/schemas/{name}"
_PART = "[a-z0-9]([a-z0-9._-]{0,62}[a-z0-9_-])?"
_NAME = {"type": "string", "pattern": f"^{_PART}(:{_PART})?(?!\\n)$", "description": "A model, as /v1/models lists it"}
_ALL = frozenset({error.http_status for error in by_code().values()} - {499})  # 499 is what a client makes of Ctrl+C
_ANY = frozenset({401, 403, 431, 500})  # what every route may answer
_BODY = {400, 408, 413, 415, 429}


class Operation(msgspec.Struct, frozen=True, kw_only=True):
    """One method of one path.

    body      the Struct that its JSON is decoded as
    answers   media type -> Struct or type of a successful answer; None: no schema
    statuses  of failures
    """

    summary: str
    tag: Literal["OpenAI", "daemon", "monitoring"]
    body: Any = None
    answers: dict[str, Any]
    success: int = 200
    statuses: frozenset[int] = _ANY
    parameter: str | None = None


_TEXT: dict[str, Any] = {"text/plain": None}
OPERATIONS: dict[tuple[str, str], Operation] = {
    ("POST", "/v1/chat/completions"): Operation(
        summary="Answer a conversation",
        tag="OpenAI",
        body=ChatBody,
        answers={JSON: shapes.ChatCompletion, "text/event-stream": None},
        statuses=_ALL | _ANY | _BODY,
    ),
    ("POST", "/v1/completions"): Operation(
        summary="Continue a text",
        tag="OpenAI",
        body=CompletionBody,
        answers={JSON: shapes.Completion, "text/event-stream": None},
        statuses=_ALL | _ANY | _BODY,
    ),
    ("POST", "/v1/embeddings"): Operation(
        summary="Turn texts into vectors",
        tag="OpenAI",
        body=EmbeddingsBody,
        answers={JSON: shapes.Embeddings},
        statuses=_ALL | _ANY | _BODY,
    ),
    ("GET", "/v1/models"): Operation(
        summary="List the models that can be asked", tag="OpenAI", answers={JSON: shapes.ModelList}
    ),
    ("GET", "/v1/models/{name}"): Operation(
        summary="Describe one model",
        tag="OpenAI",
        answers={JSON: shapes.Model},
        statuses=_ANY | {400, 404, 503},
        parameter="name",
    ),
    ("POST", NATIVE + "/generate"): Operation(
        summary="Answer, as events: one JSON object a line",
        tag="daemon",
        body=GenerateBody,
        answers={"application/x-ndjson": Event},
        statuses=_ALL | _ANY | _BODY,
    ),
    ("GET", NATIVE + "/ps"): Operation(
        summary="List the models in memory", tag="daemon", answers={JSON: shapes.LoadedModels}
    ),
    ("POST", NATIVE + "/stop"): Operation(
        summary="Unload a model after its running answers",
        tag="daemon",
        body=StopBody,
        answers={JSON: shapes.Stopped},
        statuses=_ANY | _BODY | {404},
    ),
    ("POST", NATIVE + "/shutdown"): Operation(
        summary="End the daemon; for those who hold its own token",
        tag="daemon",
        body=ShutdownBody,
        answers={JSON: shapes.Stopping},
        success=202,
        statuses=_ANY | _BODY | {409},
    ),
    ("GET", NATIVE + "/version"): Operation(
        summary="Say which version runs", tag="daemon", answers={JSON: shapes.Version}
    ),
    ("GET", "/health"): Operation(
        summary="Whether requests can be served; needs no key",
        tag="monitoring",
        answers={JSON: shapes.HealthBody},
        statuses=_ANY | {503},
    ),
    ("GET", "/metrics"): Operation(summary="Figures for Prometheus", tag="monitoring", answers=_TEXT),
    ("GET", "/openapi.json"): Operation(summary="This document", tag="monitoring", answers={JSON: None}),
    ("GET", "/"): Operation(summary="Say who is here", tag="monitoring", answers=_TEXT),
}


def document(*, keys: bool) -> Document:
    """The whole document; `keys`: requests need one."""
    kinds = [kind for one in OPERATIONS.values() for kind in (one.body, *one.answers.values()) if kind is not None]
    kinds += [shapes.Error, shapes.NativeError]
    refs, components = msgspec.json.schema_components(kinds, ref_template=_REF)
    schema_of = dict(zip(map(id, kinds), refs, strict=True))
    _describe_limits(components)
    paths: Document = {}
    for (method, path), operation in OPERATIONS.items():
        paths.setdefault(path, {})[method.lower()] = _operation(path, operation, schema_of, keys)
    schemes = {"bearer": {"type": "http", "scheme": "bearer"}}
    return {
        "openapi": "3.1.0",
        "info": {"title": "edgellm", "version": __version__, "description": __doc__.partition("\n")[0]},
        "paths": paths,
        "components": {"schemas": components} | ({"securitySchemes": schemes} if keys else {}),
    }


def _operation(path: str, operation: Operation, schema_of: dict[int, Document], keys: bool) -> Document:
    error = schema_of[id(shapes.NativeError if path.startswith(NATIVE) else shapes.Error)]
    failed = {JSON: {"schema": error}}
    answers = {
        kind: {} if shape is None else {"schema": schema_of[id(shape)]} for kind, shape in operation.answers.items()
    }
    responses: Document = {str(operation.success): {"description": "Done", "content": answers}}
    for status in sorted(operation.statuses):
        responses[str(status)] = {"description": _REASONS.get(status, "Failed"), "content": failed}
    if path == "/health":  # which says of itself why
        responses["503"] = {"description": "Draining", "content": answers}
    found: Document = {
        "summary": operation.summary,
        "operationId": _identifier(operation.summary),
        "tags": [operation.tag],
        "responses": responses,
    }
    if operation.body is not None:
        found["requestBody"] = {"required": True, "content": {JSON: {"schema": schema_of[id(operation.body)]}}}
    if operation.parameter:
        found["parameters"] = [{"name": operation.parameter, "in": "path", "required": True, "schema": _NAME}]
    if keys and path != "/health":
        found["security"] = [{"bearer": []}]
    return found


_REASONS = {
    400: "The request is wrong; `param` names the field",
    401: "A key is needed, or is wrong",
    403: "This Host or Origin is not allowed",
    404: "There is no such model",
    408: "Too slow: the request, its answer's reader, or the answer itself",
    409: "Not now: answers are under way",
    413: "The body is too large",
    415: "The body is not declared as JSON",
    429: "Too much at once; `retry-after` says when to come again",
    431: "Too many or too large headers",
    500: "Something failed here",
    501: "No engine here runs this model",
    503: "Try again: loading, draining, or the process of the model died",
}


def _identifier(summary: str) -> str:
    words = summary.partition(";")[0].partition(",")[0].partition(":")[0].lower().replace("'", "").split()
    return "_".join(words)


def _describe_limits(components: Document) -> None:
    """What the decoders check beyond types."""
    for body in (ChatBody, CompletionBody):
        schema = components[body.__name__]
        fields = schema["properties"]
        fields["model"] = _NAME
        fields["preset"] = {"enum": [*NAMES, None]}
        fields["stop"]["anyOf"][1]["maxItems"] = STOPS
        for name, values in neutral_values(body).items():
            fields[name] = {"enum": [*values, None], "description": "Not supported yet: takes neutral values only"}
        fields["mirostat"] = {"enum": [0, 2, None]}
        fields["logit_bias"]["anyOf"][0] |= {"maxProperties": BIASES, "propertyNames": {"pattern": _TOKEN_ID}}
        schema["allOf"] = [_where("stream_options", {"type": "object"}, "stream", {"const": True})]
        for theirs in ALIASES:  # taken, for those who come from other servers; here they have one name
            del fields[theirs]
    components[ChatBody.__name__]["properties"]["messages"]["minItems"] = 1
    likely = _where("top_logprobs", {"type": "integer", "minimum": 1}, "logprobs", {"const": True})
    components[ChatBody.__name__]["allOf"].append(likely)
    components[ChatBody.__name__]["properties"]["chat_template_kwargs"] = {
        "anyOf": [template_options.SCHEMA, {"type": "null"}]
    }
    completion = components[CompletionBody.__name__]["properties"]
    completion["prompt"] = _PROMPT
    completion["best_of"]["description"] = "Not below n, and above 1 not with stream"
    components["StopBody"]["properties"]["model"] = components["EmbeddingsBody"]["properties"]["model"] = _NAME
    components["EmbeddingsBody"]["properties"]["input"] = _INPUT
    components["EmbeddingsBody"]["properties"]["dimensions"] = {
        "type": "null",
        "description": "Vectors are not cut: the model's own number is taken, and no other",
    }
    message = components[ChatMessage.__name__]
    message["properties"]["role"] = {"enum": list(ROLES)}
    message["properties"]["content"] = {"anyOf": [{"type": "string"}, _PARTS]}
    message["properties"]["tool_calls"] = message["properties"]["function_call"] = _NOTHING
    message["required"] = ["role", "content"]
    components[Part.__name__] = {
        "type": "object",
        "properties": {"type": {"const": "text"}, "text": {"type": "string"}},
        "required": ["type", "text"],
    }


def _where(field: str, holds: Document, other: str, must: Document) -> Document:
    """Where one field holds this, another is needed."""
    then = {"properties": {other: must}, "required": [other]}
    return {"if": {"properties": {field: holds}, "required": [field]}, "then": then}


_TOKEN_ID = r"^(0|[1-9][0-9]{0,8})(?!\n)$"
_PARTS = {"type": "array", "minItems": 1, "items": {"$ref": _REF.format(name=Part.__name__)}}
_NOTHING: Document = {"enum": [None, [], {}, "", 0, False], "description": "Not supported yet"}
_IDS = {"type": "array", "minItems": 1, "items": {"type": "integer", "minimum": 0, "maximum": MOST}}
_WORDS = {"type": "string", "minLength": 1}
_INPUT = {
    "description": "A text, several, the token ids of one, or of several",
    "anyOf": [
        _WORDS,
        _IDS,
        {"type": "array", "minItems": 1, "maxItems": INPUTS, "items": {"anyOf": [_WORDS, _IDS]}},
    ],
}
_PROMPT = {
    "description": "A text, token ids, or a list that holds one of these",
    "anyOf": [
        {"type": "string"},
        _IDS,
        {"type": "array", "minItems": 1, "maxItems": 1, "items": {"anyOf": [{"type": "string"}, _IDS]}},
    ],
}
