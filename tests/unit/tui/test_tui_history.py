"""Conversations on disk: what is kept, found, removed, and what a killed process leaves."""

from __future__ import annotations

import os
import sqlite3
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from edgellm_tui.history import VERSION, History
from edgellm_tui.records import Figures, Turn, dialogue, title_of

from edgellm.contracts.events import Timings, Usage
from edgellm.contracts.request import Message
from edgellm.errors import LibraryError

FIGURES = Figures(0.21, Usage(212, 96, 180), Timings(0.0, 0.2, 4.0, 4.2))


@pytest.fixture
def kept(tmp_path: Path) -> Iterator[History]:
    opened = History(tmp_path / "data" / "history.db")
    yield opened
    opened.close()


def test_what_is_said_is_there_after_a_restart(kept: History) -> None:
    held, question = kept.ask(None, "Why is the sky blue?\nReally.", "m:latest")
    answer = kept.begin_answer(held.id, "m:latest")
    kept.extend_answer(answer.id, "Because ", "Let me")
    kept.extend_answer(answer.id, "it scatters.", " think.")
    ended = kept.end_answer(answer.id, "done", figures=FIGURES, thought_s=1.5)
    again = History(kept.path)
    try:
        assert again.turns(held.id) == [question, ended]
        assert (ended.text, ended.thought, ended.thought_s) == ("Because it scatters.", "Let me think.", 1.5)
        assert ended.figures == FIGURES
        (found,) = again.conversations(9)
        assert (found.title, found.model) == ("Why is the sky blue?", "m:latest")
    finally:
        again.close()


def test_the_latest_come_first_and_words_find_title_and_text(kept: History) -> None:
    whales, _ = kept.ask(None, "About whales", "m")
    birds, _ = kept.ask(None, "About birds 100%", "m")
    kept.ask(whales.id, "and the sea", "m")
    assert [each.id for each in kept.conversations(9)] == [whales.id, birds.id]
    assert [each.id for each in kept.conversations(1)] == [whales.id]
    assert [each.id for each in kept.conversations(9, "ABOUT")] == [whales.id, birds.id]
    assert [each.id for each in kept.conversations(9, "sea whales")] == [whales.id]
    assert [each.id for each in kept.conversations(9, "0%")] == [birds.id]  # no wildcard
    assert kept.conversations(9, "_") == []


def test_a_window_of_a_long_one(kept: History) -> None:
    held, first = kept.ask(None, "0", "m")
    for number in range(1, 10):
        kept.ask(held.id, str(number), "m")
    last = kept.turns(held.id, limit=3)
    assert [turn.text for turn in last] == ["7", "8", "9"]
    assert [turn.text for turn in kept.turns(held.id, before=last[0].id, limit=2)] == ["5", "6"]
    assert kept.turns(held.id, before=first.id, limit=2) == []


def test_what_is_removed_is_gone_from_the_file_too(kept: History) -> None:
    held, _ = kept.ask(None, "my secret is xyzzy-plugh", "m")
    kept.remove(held.id)
    assert kept.conversations(9) == []
    with pytest.raises(LibraryError, match="deleted"):
        kept.conversation(held.id)
    kept.close()
    files = [path.read_bytes() for path in kept.path.parent.iterdir()]
    assert files
    assert not any(b"xyzzy-plugh" in content for content in files)


def test_a_newer_or_damaged_file_is_left_alone_and_named(tmp_path: Path) -> None:
    newer = tmp_path / "newer.db"
    with sqlite3.connect(newer) as db:
        db.execute(f"PRAGMA user_version = {VERSION + 1}")
    db.close()
    with pytest.raises(LibraryError, match="newer edgellm"):
        History(newer)
    damaged = tmp_path / "damaged.db"
    damaged.write_bytes(b"this is no database" * 500)
    with pytest.raises(LibraryError, match=r"damaged\.db") as caught:
        History(damaged)
    assert "move it away" in (caught.value.hint or "")
    assert damaged.read_bytes().startswith(b"this is no database")


@pytest.mark.skipif(os.name == "nt", reason="no modes there")
def test_only_its_user_may_read_it(kept: History) -> None:
    kept.ask(None, "private", "m")
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in kept.path.parent.iterdir()}
    assert set(modes.values()) == {0o600}, modes


WRITER = """
import sys, time
from pathlib import Path
from edgellm_tui.history import History
kept = History(Path(sys.argv[1]))
held, _ = kept.ask(None, "Count", "m")
answer = kept.begin_answer(held.id, "m")
for number in range(1_000_000):
    kept.extend_answer(answer.id, f"{number} ")
    sys.stdout.write(f"{number}\\n"); sys.stdout.flush()
"""


def test_a_killed_process_loses_nothing_it_had_kept(tmp_path: Path) -> None:
    path = tmp_path / "history.db"
    for _ in range(3):
        process = subprocess.Popen([sys.executable, "-c", WRITER, str(path)], stdout=subprocess.PIPE, text=True)
        assert process.stdout is not None
        said = [process.stdout.readline() for _ in range(200)]
        process.kill()
        said += process.stdout.readlines()
        process.wait()
        process.stdout.close()
        told = int([line for line in said if line.endswith("\n")][-1])
        opened = History(path)
        try:
            _, answer = opened.turns(opened.conversations(1)[0].id)
            assert answer.state == "writing"
            numbers = answer.text.split()
            assert numbers == [str(number) for number in range(len(numbers))]
            assert len(numbers) > told
        finally:
            opened.close()


def test_two_windows_write_one_history(kept: History) -> None:
    other = History(kept.path)
    try:
        mine, _ = kept.ask(None, "here", "m")
        theirs, _ = other.ask(None, "there", "m")
        assert {each.id for each in kept.conversations(9)} == {mine.id, theirs.id}
    finally:
        other.close()


def turn(role: str, text: str, state: str = "done") -> Turn:
    return Turn(id=0, role=role, text=text, created=time.time(), state=state)  # type: ignore[arg-type]


def test_what_the_model_is_told() -> None:
    told = dialogue(
        [
            turn("user", "unanswered"),
            turn("assistant", "", "stopped"),
            turn("user", "one"),
            turn("assistant", "broken of", "failed"),
            turn("assistant", "first"),
            turn("user", "two"),
            turn("assistant", "cut sho", "stopped"),
            turn("user", "three"),
        ]
    )
    assert told == (
        Message("user", "one"),
        Message("assistant", "first"),
        Message("user", "two"),
        Message("assistant", "cut sho"),
        Message("user", "three"),
    )


def test_titles_and_footers() -> None:
    assert title_of("\n  \n  A question\x1b[2J?  \nmore") == "A question␛[2J?"
    assert title_of("x" * 100) == "x" * 59 + "…"
    assert str(FIGURES) == "this device · 0.21 s · 24 tok/s · 212 + 96 (180 cached)"
    cut = Figures(12.0, Usage(7, 1), Timings(0.0, 0.2, 0.0, 0.2), "length")
    assert str(cut) == "this device · 12 s · 7 + 1 · cut at the token limit"
