"""OpenAI's embeddings: the body of /v1/embeddings, and its answer."""

from __future__ import annotations

import base64
from array import array
from collections.abc import AsyncIterator
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from edgellm.contracts.embedding import EmbedRequest
from edgellm.contracts.events import Embedded, Event, Failed, Finished
from edgellm.contracts.ranges import MOST, Token
from edgellm.errors import EdgeError, GenerationFailed, InvalidRequest
from edgellm.server.body import decode

INPUTS = 2048  # of one request, as OpenAI has it

Format = Literal["float", "base64"]


class EmbeddingsBody(msgspec.Struct, kw_only=True):
    """`input`: a text, several, the token ids of one, or of several."""

    model: Annotated[str, Meta(min_length=1, max_length=256)]
    input: str | list[str | int | list[Token]]
    encoding_format: Format | None = None
    dimensions: Annotated[int, Meta(ge=1)] | None = None
    user: Any = None
    keep_alive: float | None = None  # seconds
    priority: Annotated[int, Meta(ge=-1000, le=1000)] | None = None  # lower is served first; 0 is normal


class AskedVectors(msgspec.Struct, frozen=True):
    """A request, and how its vectors are to be sent."""

    request: EmbedRequest
    format: Format
    dimensions: int | None


def parse(body: bytes, request_id: str) -> AskedVectors:
    """Parse the body of /v1/embeddings. Raises InvalidRequest."""
    asked = decode(body, EmbeddingsBody)
    request = EmbedRequest(
        id=request_id,
        model=asked.model,
        inputs=_inputs(asked.input),
        priority=asked.priority or 0,
        keep_alive_s=asked.keep_alive,
    )
    return AskedVectors(request, asked.encoding_format or "float", asked.dimensions)


async def answer(events: AsyncIterator[Event], model: str, asked: AskedVectors) -> bytes:
    """The whole body. Raises EdgeError when the request failed, or asked for a size the model does not make."""
    vectors: Embedded | None = None
    async for event in events:
        match event:
            case Embedded():
                check_dimensions(asked.dimensions, event.dimensions, model)
                vectors = event
            case Failed(error):
                raise EdgeError.from_info(error)
            case Finished(usage) if vectors is not None:
                tokens = usage.prompt_tokens
                data = [_item(index, one, asked.format) for index, one in enumerate(_each(vectors))]
                return msgspec.json.encode(
                    {
                        "object": "list",
                        "data": data,
                        "model": model,
                        "usage": {"prompt_tokens": tokens, "total_tokens": tokens},
                    }
                )
            case _:
                pass
    raise GenerationFailed("the answer ended without vectors")


def _inputs(given: str | list[str | int | list[int]]) -> tuple[str | tuple[int, ...], ...]:
    ids = [item for item in given if isinstance(item, int)]
    if ids and len(ids) == len(given):
        return (_input(ids, "input"),)
    several = [given] if isinstance(given, str) else given
    if not several:
        raise InvalidRequest("input must not be empty", param="input")
    if len(several) > INPUTS:
        raise InvalidRequest(f"input takes at most {INPUTS} texts", hint="send several requests", param="input")
    return tuple(_input(item, "input" if given is item else f"input[{i}]") for i, item in enumerate(several))


def _input(item: str | int | list[int], where: str) -> str | tuple[int, ...]:
    if isinstance(item, int):
        raise InvalidRequest(f"{where}: token ids beside texts belong in a list of their own", param=where)
    if not item:
        raise InvalidRequest(f"{where} must not be empty", param=where)
    if isinstance(item, str):
        return item
    bad = next((token for token in item if not 0 <= token <= MOST), None)
    if bad is not None:
        raise InvalidRequest(f"{where}: {bad} is not a token id", param=where)
    return tuple(item)


def check_dimensions(wanted: int | None, made: int, model: str) -> None:
    """Vectors are not cut. Raises InvalidRequest."""
    if wanted is not None and wanted != made:
        raise InvalidRequest(
            f"{model} makes vectors of {made} dimensions, not {wanted}", hint="leave dimensions out", param="dimensions"
        )


def _each(vectors: Embedded) -> list[bytes]:
    step = 4 * vectors.dimensions
    return [vectors.vectors[start : start + step] for start in range(0, len(vectors.vectors), step)]


def _item(index: int, raw: bytes, form: Format) -> dict[str, Any]:
    vector: Any = base64.b64encode(raw).decode() if form == "base64" else _floats(raw)
    return {"object": "embedding", "index": index, "embedding": vector}


def _floats(raw: bytes) -> list[float]:
    """Nine digits give the same float32 back."""
    numbers = array("f")
    numbers.frombytes(raw)
    return [float(f"{number:.9g}") for number in numbers]
