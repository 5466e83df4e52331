"""`edgellm run` with a real model: the same answer on a terminal, in a pipe and as JSON; Ctrl+C at once."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

if os.name != "posix":
    pytest.skip("pseudo-terminals as POSIX has them", allow_module_level=True)

from at_best import at_best
from real_daemon import MODEL, Served, home_with_model, serving, wait_for
from terminals import Session, Terminal

from edgellm.cli.render.document import Markdown
from edgellm.cli.render.styles import Styles

COMMAND = [sys.executable, "-m", "edgellm", "run", MODEL]
EXACT = ["--temperature", "0", "--max-tokens", "80"]
QUESTION = "Write a numbered list of five animals, each with one **bold** word."


@pytest.fixture(scope="module")
def served(starter: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("EDGELLM_CONTEXT", "4096")
        with serving(home_with_model(starter, tmp_path_factory.mktemp("home"), patch)) as served:
            yield served


def piped(*words: str, text: str = "") -> subprocess.CompletedProcess[str]:
    return subprocess.run([*COMMAND, *words], input=text, capture_output=True, text=True, timeout=100, check=False)


def test_one_answer_three_ways(served: Served) -> None:
    document = json.loads(piped(QUESTION, *EXACT, "--json").stdout)
    answer = document["text"]
    assert document["usage"]["completion_tokens"] > 20
    plain = piped(*EXACT, text=QUESTION + "\n")
    assert (plain.returncode, plain.stderr) == (0, "")
    assert plain.stdout == (answer if answer.endswith("\n") else answer + "\n")
    terminal, once = Terminal(80, 24, driver=True), Terminal(80, 24)
    session = Session([*COMMAND, QUESTION, *EXACT], terminal, {})
    try:
        assert session.end(100) == 0
    finally:
        session.close()
    rendered = Markdown(Styles())
    once.feed("\n".join([*rendered.feed(answer, 79), *rendered.finish(79)]))
    shown = terminal.text()
    footer = next(at for at, line in enumerate(shown) if line.startswith(f"── this device · {served.model.engine} · "))
    assert shown[:footer] == once.text()


def test_a_file_is_part_of_the_prompt(served: Served) -> None:
    with_file = json.loads(piped("Sum up:", "--json", "--max-tokens", "1", text="colour " * 200).stdout)
    without = json.loads(piped("Sum up:", "--json", "--max-tokens", "1").stdout)
    assert with_file["usage"]["prompt_tokens"] > without["usage"]["prompt_tokens"] + 150


@pytest.mark.slow
def test_ctrl_c_in_the_midst_of_a_long_prompt(served: Served, tmp_path: Path) -> None:
    """The terminal is there again at once, and the daemon drops the work."""
    session = Session(COMMAND, Terminal(80, 24, driver=True), {})
    words = iter(["red", "green", "blue", "brown", "black"])  # a text that was read before would take no time

    def free_s() -> float:
        session.type("\x1b[200~" + f"{next(words)} " * 3500 + "\x1b[201~")
        session.type("\r")
        wait_for(lambda: session.read(0.02) and any(model.running for model in served.client.ps()), 60)
        stopped = session.written.count("(stopped)")
        session.type("\x03")
        taken = wait_for(lambda: session.read(0.02) and session.written.count("(stopped)") > stopped, 60)
        taken += wait_for(lambda: session.read(0.02) and not served.model.running, 60)
        session.wait_for_prompt()
        return taken

    try:
        session.wait_for("Ask something")
        session.type("/set frequency_penalty -2\r")  # the answer does not end by itself
        session.wait_for_prompt()
        assert at_best(free_s, enough=2) < 2
        session.type("\x04")
        assert session.end() == 0
    finally:
        session.close()
