"""Conversations as a person has them: a real terminal, real keys, a real daemon process with a made-up service."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

if os.name != "posix":
    pytest.skip("pseudo-terminals as POSIX has them", allow_module_level=True)

from cli_fakes import put
from terminals import Session, Terminal

from edgellm.paths import default_paths

ECHO = Path(__file__).parents[2] / "echo_daemon.py"
CTRL_C, CTRL_D, CTRL_J, ALT_ENTER, UP = "\x03", "\x04", "\n", "\x1b\r", "\x1b[A"
Start = Callable[..., Session]


@pytest.fixture(scope="module")
def left(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A file with a line for each question whose answer was given up; beside it the home of a daemon that echoes."""
    root = tmp_path_factory.mktemp("talk")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("EDGELLM_HOME", str(root / "home"))
        put("fake")
        patch.setenv("EDGELLM_PORT", "0")
        argv = [sys.executable, str(ECHO), str(root / "left"), "--detached"]
        with (root / "log").open("wb") as log:
            daemon = subprocess.Popen(argv, stderr=log)
        try:
            info = default_paths().runtime / "daemon.json"
            deadline = time.monotonic() + 60
            while not info.exists():
                assert time.monotonic() < deadline
                assert daemon.poll() is None
                time.sleep(0.01)
            yield root / "left"
        finally:
            daemon.kill()
            daemon.wait()


@pytest.fixture
def start(left: Path) -> Iterator[Start]:
    """Start `edgellm run`; `out` takes its stdout, where that is not to be the terminal."""
    sessions: list[Session] = []

    def start(*words: str, out: Path | None = None, **environment: str) -> Session:
        command = [sys.executable, "-m", "edgellm", "run", "fake", *words]
        if out is not None:
            command = ["sh", "-c", 'exec "$@" > "$0"', str(out), *command]
        sessions.append(Session(command, Terminal(80, 24, driver=True), environment))
        return sessions[-1]

    yield start
    for session in sessions:
        session.close()


@pytest.mark.slow
def test_a_conversation(start: Start, left: Path) -> None:
    before = left.read_text() if left.exists() else ""
    session = start()
    session.wait_for("Ask something, or /help")
    session.type("# One **two**\r")
    session.wait_for("tok/s")
    assert "One two" in session.terminal.text()

    session.wait_for_prompt()
    session.type(f"first{CTRL_J}second{ALT_ENTER}third\r")
    session.wait_for("\nfirst\nsecond\nthird\n")

    session.wait_for_prompt()
    session.type('"""\rfour\rfive"""\r')
    session.wait_for("\nfour\nfive\n──")

    session.wait_for_prompt()
    session.type("\x1b[200~six\rseven\neight\x1b[201~")
    session.wait_for("> six\n… seven\n… eight")
    session.type("\r")
    session.wait_for("\nsix\nseven\neight\n")

    session.wait_for_prompt()
    session.type(f"nonsense{CTRL_C}")
    session.type(CTRL_C)
    session.wait_for("Ctrl+D or /bye leaves.")
    assert "nonsense" not in session.terminal.text()[-1]
    session.type(CTRL_D)
    assert session.end() == 0
    assert (left.read_text() if left.exists() else "") == before  # nothing was given up

    again = start()
    again.wait_for("Ask something")
    again.type(UP)
    again.wait_for("> six\n… seven\n… eight")
    again.type(f"{CTRL_C}/bye\r")
    assert again.end() == 0


@pytest.mark.parametrize(("question", "words"), [("slow", "the first half"), ("prefill", "reading the prompt … 40 %")])
def test_ctrl_c_stops_an_answer(question: str, words: str, start: Start, left: Path) -> None:
    session = start()
    session.wait_for("Ask something")
    session.type(f"{question}\r")
    session.wait_for(words)
    session.type(f"typed ahead\rand more{CTRL_C}")
    session.wait_for("(stopped)")
    session.wait_for("> typed ahead\ntyped ahead\n──")
    session.wait_for("> and more")
    assert "^C" not in session.written
    deadline = time.monotonic() + 60
    while not (left.exists() and question in left.read_text().split()):
        assert time.monotonic() < deadline, "the daemon was not told"
        time.sleep(0.01)
    session.type(f"{CTRL_C}{CTRL_D}")
    assert session.end() == 0


def test_what_is_typed_while_it_starts_is_asked(start: Start) -> None:
    session = start()
    while "starting" not in session.written:  # it may be gone from the screen already
        assert session.read(20)
    session.type("early\r")
    session.wait_for("> early\nearly\n──")
    session.wait_for_prompt()
    session.type(CTRL_D)
    assert session.end() == 0


def test_one_answer_and_ctrl_c(start: Start) -> None:
    session = start("slow")
    session.wait_for("the first half")
    session.type(CTRL_C)
    assert session.end() == 130
    assert session.terminal.text() == ["the first half"]
    assert "Traceback" not in session.written


@pytest.mark.slow
def test_hostile_text_in_a_conversation(start: Start) -> None:
    """What the model repeats, what an error repeats: nothing of it acts."""
    session = start()
    session.wait_for("Ask something")
    session.type("\x1b[200~a \x1b]52;c;Zm9v\x07 \u202egnp\x1b[201~\r")
    session.wait_for("tok/s")
    session.wait_for_prompt()
    session.type("/set \x1b[200~\x1b]0;title\x07\x1b[201~ x\r")
    session.wait_for("nothing named")
    assert "\x1b]" not in session.written
    assert "a ␛]52;c;Zm9v␇" in "\n".join(session.terminal.text())
    session.type(CTRL_D)
    assert session.end() == 0


@pytest.mark.slow
def test_a_terminal_that_only_prints(start: Start) -> None:
    session = start(TERM="dumb")
    session.wait_for(">")
    session.type("# One **two**\r")
    session.wait_for("\n# One **two**\n")
    session.wait_for_prompt()
    session.type(CTRL_D)
    assert session.end() == 0
    assert "\x1b[2K" not in session.written


def test_without_colour(start: Start) -> None:
    session = start("**bold** and `code`", NO_COLOR="1")
    session.wait_for("bold and `code`")
    assert session.end() == 0
    assert "\x1b[1mbold\x1b[0m" in session.written
    assert "\x1b[3" not in session.written


@pytest.mark.slow
def test_answers_to_a_file_and_questions_from_a_person(start: Start, tmp_path: Path) -> None:
    """Only answers go to stdout; the conversation itself is on stderr."""
    session = start(out=tmp_path / "answers")
    session.wait_for("Ask something")
    session.type("# One **two**\r")
    session.wait_for("tok/s")
    session.type(CTRL_D)
    assert session.end() == 0
    assert (tmp_path / "answers").read_text() == "# One **two**\n"
