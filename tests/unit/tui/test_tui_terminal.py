"""What a terminal may send: keys, pastes of anything, bytes that are no text."""

from __future__ import annotations

import itertools
import os
import sys
from pathlib import Path

import pytest
from at_best import least_cpu_s
from cli_fakes import put
from hypothesis import given
from hypothesis import strategies as st
from textual import events
from textual.message import Message

if os.name != "posix":
    pytest.skip("terminals of POSIX", allow_module_level=True)

from edgellm_tui.terminal import Keys
from terminals import Session, Terminal

HOSTILE = "one\rtwo \x1b]52;c;aGk=\x07\rthree \x1b[A\x1b[13u\x1b[200~ four \x1b"


def told(pieces: list[str]) -> list[Message]:
    keys = Keys()
    return [message for piece in pieces for message in keys.feed(piece)]


def shown(messages: list[Message]) -> list[str]:
    return [
        f"<{message.text}>" if isinstance(message, events.Paste) else message.key
        for message in messages
        if isinstance(message, events.Paste | events.Key)
    ]


def test_a_paste_is_one_message_whatever_it_holds() -> None:
    stream = f"a\x1b[200~{HOSTILE}\x1b[201~b\x1b[A"
    assert shown(told([stream])) == ["a", f"<{HOSTILE}>", "b", "up"]


@given(st.lists(st.integers(0, 60), max_size=8))
def test_pieces_of_a_paste_make_the_same_paste(cuts: list[int]) -> None:
    start, stream = "\x1b[200~", f"{HOSTILE}\x1b[201~b"
    at = [0, *sorted(cut for cut in cuts if cut < len(stream)), len(stream)]
    pieces = [stream[begin:end] for begin, end in itertools.pairwise(at)]
    assert shown(told([start, *filter(None, pieces)])) == [f"<{HOSTILE}>", "b"]


def test_a_very_large_paste_takes_time_by_its_length_and_no_more() -> None:
    stream = ["\x1b[200~", *["x" * 1000] * 20_000, "\x1b[201~"]
    (paste,) = told(stream)
    assert isinstance(paste, events.Paste)
    assert len(paste.text) == 20_000_000
    assert least_cpu_s(lambda: told(stream), enough=5) < 5


def test_keys_are_what_they_were() -> None:
    assert shown(told(["x", "\x1b[A", "\r", "\x01", "é", "\x1b[1;5H"])) == [
        "x",
        "up",
        "enter",
        "ctrl+a",
        "é",
        "ctrl+home",
    ]


def test_the_chat_goes_on_after_bytes_that_are_no_text(home: Path) -> None:
    put("m")
    program = Session([sys.executable, "-m", "edgellm", "chat"], Terminal(80, 24), {"EDGELLM_HOME": str(home)})
    try:
        program.wait_for("Ask m:latest")
        program.send(b"caf\xe9 \xff\xfe ")
        program.send(b"\x1b[200~" + b"two\rlines \x1b]52;c;aGk=\x07" + b"\x1b[201~")
        program.send(b" and on")
        program.wait_for("caf\ufffd \ufffd\ufffd two")
        program.wait_for("lines ␛]52;c;aGk=␇ and on")
        program.send(b"\x11")
        assert program.end() == 0
    finally:
        program.close()
