"""One request to the daemon: its progress on stderr, its text on stdout as it comes, its figures at the end."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import closing

import msgspec

from edgellm.cli.output import Output
from edgellm.cli.render.live import Answer, answer_to
from edgellm.client import DaemonClient
from edgellm.contracts.events import (
    ChoiceDone,
    Event,
    Failed,
    Finished,
    FinishReason,
    Progress,
    ReasoningDelta,
    Slid,
    TextDelta,
    Timings,
    Usage,
)
from edgellm.contracts.request import GenerateRequest
from edgellm.errors import EdgeError, GenerationFailed
from edgellm.units import number, seconds

_WORDS = {"load": "loading the model", "prefill": "reading the prompt"}


class Turn(msgspec.Struct):
    """An answer and its figures. `first_s`: from the request to the first text, loading included, seconds."""

    text: str = ""
    thoughts: str = ""
    reason: FinishReason = "stop"
    usage: Usage | None = None
    timings: Timings | None = None
    first_s: float | None = None
    load_s: float = 0.0
    forgotten: int = 0  # tokens of the conversation that slid out of the context


def ask(client: DaemonClient, request: GenerateRequest, output: Output, turn: Turn, *, markdown: bool) -> None:
    """Stream one answer; in JSON mode it is only collected. Raises what the answer failed with.

    `turn` is filled on the way, so that an interrupted answer is not lost.
    """
    answer = None if output.json else answer_to(output, markdown=markdown)
    events = client.generate(request)
    try:
        # Closed in any case, Ctrl+C included: that is how the daemon learns that nobody listens any more.
        with closing(events):
            _follow(events, turn, answer, output)
    finally:
        output.clear_status()
        if answer is not None:
            answer.end()


def engine_of(client: DaemonClient, model: str) -> str:
    """The engine that has the model in memory, as people call it; "" where nobody says. Nothing fails for it."""
    try:
        return next((loaded.engine for loaded in client.ps() if loaded.name == model), "")
    except EdgeError:
        return ""


def footer(turn: Turn, engine: str = "") -> str:
    """Where and how fast: "── this device · llama.cpp · 0.16 s to first token · 124 tok/s · 31 + 96 tokens"."""
    parts = ["── this device"]
    if engine:
        parts.append(engine)
    if turn.first_s is not None:
        loading = f" ({seconds(turn.load_s)} of it loading)" if turn.load_s >= 0.05 else ""
        parts.append(f"{seconds(turn.first_s)} to first token{loading}")
    if turn.usage is not None and turn.timings is not None:
        decoded, decode_s = turn.usage.completion_tokens - 1, turn.timings.decode_s
        if decoded > 0 and decode_s > 0:
            parts.append(f"{decoded / decode_s:.0f} tok/s")
        cached = f" ({turn.usage.cached_tokens} cached)" if turn.usage.cached_tokens else ""
        parts.append(f"{turn.usage.prompt_tokens} + {turn.usage.completion_tokens} tokens{cached}")
    if turn.forgotten:
        parts.append(f"{number(turn.forgotten)} oldest tokens forgotten")
    if turn.reason == "length":
        parts.append("cut at the token limit")
    return " · ".join(parts)


def _follow(events: Iterator[Event], turn: Turn, answer: Answer | None, output: Output) -> None:
    began = time.monotonic()
    for event in events:
        match event:
            case Progress():
                if event.stage == "load":
                    turn.load_s = time.monotonic() - began
                output.status(_told(event))
            case TextDelta() | ReasoningDelta():
                if turn.first_s is None:
                    turn.first_s = time.monotonic() - began
                _add(event, turn, answer)
            case Slid():
                turn.forgotten += event.dropped
            case ChoiceDone():
                turn.reason = event.reason
            case Finished():
                turn.usage, turn.timings = event.usage, event.timings
                if turn.first_s is None:  # an empty answer is one, too
                    turn.first_s = time.monotonic() - began
                return
            case Failed():
                raise EdgeError.from_info(event.error)
    raise GenerationFailed("the answer broke off", hint="try again")


def _add(delta: TextDelta | ReasoningDelta, turn: Turn, answer: Answer | None) -> None:
    if isinstance(delta, TextDelta):
        turn.text += delta.text
        if answer is not None:
            answer.write(delta.text)
    else:
        turn.thoughts += delta.text
        if answer is not None:
            answer.think(delta.text)


def _told(progress: Progress) -> str:
    if progress.stage == "queue":
        return f"waiting: {progress.total:.0f} ahead"
    share = progress.done / progress.total if progress.total else 0.0
    return f"{_WORDS[progress.stage]} … {100 * min(1.0, share):.0f} %"
