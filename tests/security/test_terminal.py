"""Case 15: what a model writes is inert on a real terminal."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.skipif(os.name != "posix", reason="a pseudo-terminal")

ATTACKS = {
    "clipboard": "\x1b]52;c;cm0gLXJmIH4=\x07",
    "link": "\x1b]8;;https://evil.example\x1b\\here\x1b]8;;\x1b\\",
    "clear": "\x1b[2J\x1b[H",
    "one-byte CSI": "\x9b2J",
    "title": "\x1b]0;root\x07",
    "override": "\u202etxt.exe\u202c",
    "isolate": "\u2066abc\u2069",
    "backspaces": "safe\x08\x08\x08\x08evil",
    "return": "shown\rhidden",
}
SCRIPT = """
import sys
from cli_fakes import ANSWER, FakeClient, put
import edgellm.cli.run, edgellm.cli.link
from edgellm.cli.main import main
from edgellm.contracts.events import TextDelta

put("m")
client = FakeClient((*ANSWER[:2], *(TextDelta(character) for character in {text!r}), TextDelta(" end"), *ANSWER[-2:]))
edgellm.cli.run.DaemonClient = edgellm.cli.link.DaemonClient = client
sys.exit(main(["run", "m", "hi"]))
"""


@pytest.mark.parametrize("attack", ATTACKS)
def test_case_15_what_a_model_writes_is_inert_on_a_terminal(attack: str, home: Path, tmp_path: Path) -> None:
    shown = on_a_terminal(SCRIPT.format(text=ATTACKS[attack]))
    assert "end" in shown
    assert "\x1b]" not in shown  # no operating system command at all
    for character in ("\x9b", "\x07", "\x08", "\u202e", "\u202c", "\u2066", "\u2069"):
        assert character not in shown
    assert "shown\rhidden" not in shown
    # Our own sequences colour, move within the line or the answer's last lines, and erase to the end of these.
    assert set(re.findall(r"\x1b\[[0-9;?]*([A-Za-z])", shown)) <= set("mKAGJhl")
    assert "\x1b[2J" not in shown
    assert "\x1b[H" not in shown


def on_a_terminal(script: str) -> str:
    """What a Python script writes on a terminal of its own."""
    import pty

    master, slave = pty.openpty()
    environment = {**os.environ, "TERM": "xterm-256color", "COLUMNS": "80"}
    paths = [str(Path(__file__).parents[1]), *sys.path]
    environment["PYTHONPATH"] = os.pathsep.join(path for path in paths if path)
    process = subprocess.Popen(
        [sys.executable, "-c", script], stdin=subprocess.DEVNULL, stdout=slave, stderr=slave, env=environment
    )
    os.close(slave)
    received = b""
    try:
        while part := os.read(master, 65536):
            received += part
    except OSError:  # Linux says so at the end
        pass
    os.close(master)
    assert process.wait(30) == 0, received
    return received.decode()
