"""Frames between daemon and worker."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgellm.contracts.engine import Placement
from edgellm.contracts.events import (
    ChoiceDone,
    Failed,
    Finished,
    Progress,
    Started,
    TextDelta,
    Timings,
    Usage,
)
from edgellm.contracts.request import GenerateRequest, Message, Messages, Sampling, Text, Tokens
from edgellm.contracts.runner import RunnerInfo
from edgellm.engine.protocol import (
    FRAME_LIMIT,
    Cancel,
    Emitted,
    FrameReader,
    FromWorker,
    Generate,
    Heartbeat,
    Hello,
    Load,
    LoadError,
    Loading,
    ProtocolError,
    Ready,
    Shutdown,
    ToWorker,
    encode,
)
from edgellm.errors import ContextExceeded, EdgeError, WorkerDied

PLACEMENT = Placement(context=512, capacity=1024, max_sequences=4, batch_tokens=64, threads=2, threads_batch=2)
TO_WORKER: list[Any] = [
    Load("fake", "/m.gguf", PLACEMENT, "m:latest"),
    Generate(
        GenerateRequest(
            id="1",
            model="m",
            prompt=Messages((Message("system", "be brief"), Message("user", "hé 🙂", "Ann"))),
            sampling=Sampling(temperature=0.0, seed=2**64 - 1),
            stop=("\n",),
            timeout_s=1.5,
        )
    ),
    Generate(GenerateRequest(id="2", model="m", prompt=Text(""), keep_alive_s=-1.0)),
    Generate(GenerateRequest(id="3", model="m", prompt=Tokens((1, 2, 3)), max_tokens=1)),
    Cancel("1"),
    Shutdown(),
]
FROM_WORKER: list[Any] = [
    Hello(1, "0.1.0", 42),
    Loading(0.5),
    Ready(RunnerInfo("fake", 512, 1024, 4, 64), 0.2),
    LoadError(ContextExceeded("too long", hint="shorter", param="messages").info),
    Emitted(
        [
            ("1", Progress("prefill", 1.0, 2.0)),
            ("1", Started(3, 0, 7)),
            ("2", TextDelta("\u0000é")),
            ("2", ChoiceDone("length")),
            ("2", Finished(Usage(3, 4, 1), Timings(0.0, 0.1, 0.2, 0.3))),
            ("3", Failed(WorkerDied("gone", retry_after=2.0).info)),
        ]
    ),
    Heartbeat(3, 0.1, 0.2, 1, 2, 300),
]


@pytest.mark.parametrize(("kind", "messages"), [(ToWorker, TO_WORKER), (FromWorker, FROM_WORKER)])
def test_every_message_survives_the_way(kind: Any, messages: list[Any]) -> None:
    stream = b"".join(map(encode, messages))
    assert list(FrameReader(kind).feed(stream)) == messages


@given(st.lists(st.integers(1, 50), max_size=200))
def test_cuts_do_not_matter(cuts: list[int]) -> None:
    stream = b"".join(map(encode, FROM_WORKER))
    reader = FrameReader(FromWorker)
    found: list[Any] = []
    for cut in [*cuts, len(stream)]:
        found += reader.feed(stream[:cut])
        stream = stream[cut:]
    assert found == FROM_WORKER


def test_a_length_beyond_the_limit_is_refused_before_its_body_comes() -> None:
    reader = FrameReader(FromWorker)
    with pytest.raises(ProtocolError, match="exceeds the limit"):
        list(reader.feed((FRAME_LIMIT + 1).to_bytes(4, "big")))


def test_a_message_beyond_the_limit_is_not_sent() -> None:
    request = GenerateRequest(id="1", model="m", prompt=Text("x" * FRAME_LIMIT))
    with pytest.raises(ProtocolError, match="exceeds the limit"):
        encode(Generate(request))


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"\xc1",
        b"\x80",
        b"hello",
        encode(Hello(1, "0.1.0", 42))[4:-1],  # cut short
        encode(Cancel("1"))[4:],  # of the other direction
        b"\x82\xa4type\xa7Loading\xa4done\xa1x",  # a wrong type inside
    ],
)
def test_malformed_bodies(body: bytes) -> None:
    with pytest.raises(ProtocolError, match="malformed"):
        list(FrameReader(FromWorker).feed(len(body).to_bytes(4, "big") + body))


def test_errors_come_back_as_what_they_were() -> None:
    (message,) = FrameReader(FromWorker).feed(encode(FROM_WORKER[3]))
    error = EdgeError.from_info(message.error)
    assert isinstance(error, ContextExceeded)
    assert (error.message, error.hint, error.param) == ("too long", "shorter", "messages")
