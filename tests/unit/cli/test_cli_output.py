"""What reaches the screen: colour, bars, times."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from cli_fakes import Streams, at_terminal

import edgellm.cli.answer
import edgellm.cli.daemon
import edgellm.cli.doctor
import edgellm.cli.models
import edgellm.cli.output
import edgellm.cli.pull
import edgellm.cli.run
from edgellm.cli import terminal
from edgellm.cli.parse import duration
from edgellm.errors import DiskFull, InvalidRequest, NotFound


def test_colour_only_on_a_willing_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    class Tty(io.StringIO):
        def isatty(self) -> bool:
            return True

    for name in ("NO_COLOR", "TERM", "WT_SESSION"):
        monkeypatch.delenv(name, raising=False)
    assert not terminal.has_colour(Tty())
    monkeypatch.setenv("TERM", "xterm")
    assert terminal.has_colour(Tty())
    assert not terminal.has_colour(io.StringIO())
    monkeypatch.setenv("NO_COLOR", "1")
    assert not terminal.has_colour(Tty())


def test_bar_says_mib_rate_and_time_left(capsys: Streams, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter([0.0, 2.0, 4.0])
    monkeypatch.setattr(edgellm.cli.output, "time", SimpleNamespace(monotonic=lambda: next(clock)))
    at_terminal(monkeypatch, edgellm.cli.output)
    bar = edgellm.cli.output.Bar(edgellm.cli.output.Output())
    mib = 1 << 20
    bar.update(0, 94 * mib)
    bar.update(47 * mib, 94 * mib)
    bar.finish(94 * mib, "verified")
    shown = capsys.readouterr().err
    assert "━" * 16 + " " * 16 + " 47/94 MiB · 24 MiB/s · 2 s left" in shown
    assert shown.endswith("━" * 32 + " 94/94 MiB · 24 MiB/s · verified\n")


@pytest.mark.skipif(os.name != "posix", reason="terminals as POSIX has them")
def test_what_a_terminal_shows_of_ctrl_c_goes_with_the_status(capsys: Streams, monkeypatch: pytest.MonkeyPatch) -> None:
    from terminals import Terminal

    at_terminal(monkeypatch, edgellm.cli.output)
    output, screen = edgellm.cli.output.Output(), Terminal(40, 4)
    output.status("33/94 MiB")
    screen.feed(capsys.readouterr().err + "^C")
    output.clear_status()
    screen.feed(capsys.readouterr().err + "$ ")
    assert screen.text() == ["$"]


@pytest.mark.parametrize(
    ("text", "value"),
    [("300", 300), ("5m", 300), ("1.5h", 5400), ("1d", 86400), ("forever", -1), ("-5", -1), ("0", 0)],
)
def test_durations(text: str, value: float) -> None:
    assert duration(text) == value


@pytest.mark.parametrize("text", ["", "soon", "5 weeks", "nan", "inf", "1e3"])
def test_bad_durations(text: str) -> None:
    with pytest.raises(InvalidRequest):
        duration(text)


def test_long_lines_are_broken_at_spaces_on_a_terminal_and_left_alone_in_a_pipe(
    capsys: Streams, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = "/a/path/" + "x" * 60
    error = InvalidRequest(f"the file {path} " + "is of no use to anybody here " * 3, hint="name another one " * 8)
    output = edgellm.cli.output.Output()
    output.error(error)
    assert capsys.readouterr().err == f"error: {error.message}\nhint: {error.hint}\n"
    at_terminal(monkeypatch, edgellm.cli.output)
    monkeypatch.setattr(edgellm.cli.output, "width", lambda: 40)
    output.error(error)
    output.warn(error.message)
    lines = capsys.readouterr().err.splitlines()
    assert all(len(line) < 40 for line in lines if path not in line)
    assert lines.count(path) == 2, "whole, to be copied"
    told = f"error: {error.message} hint: {error.hint} warning: {error.message}"
    assert " ".join(lines).split() == told.split(), "nothing is lost"


def test_a_table_on_a_narrow_terminal_spares_columns_and_then_becomes_lines(
    capsys: Streams, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = (("NAME", ">SIZE", "NOTE"), [["smollm2:135m", "94 MiB", "loaded"], ["m", "1 GiB", ""]], ("NOTE", "SIZE"))
    output = edgellm.cli.output.Output()
    monkeypatch.setenv("COLUMNS", "24")
    output.table(*table)
    whole = "NAME            SIZE  NOTE\nsmollm2:135m  94 MiB  loaded\nm              1 GiB\n"
    assert capsys.readouterr() == (whole, ""), "in a pipe all of it is wanted"
    at_terminal(monkeypatch, edgellm.cli.output)
    output.table(*table)
    out, err = capsys.readouterr()
    assert out == "NAME            SIZE\nsmollm2:135m  94 MiB\nm              1 GiB\n"
    assert err == "a wider terminal shows\nmore: note\n"
    output.table(("NAME", "GOES ON WITH"), [["m", "edgellm pull hf:org/m"]])
    assert capsys.readouterr() == ("m\n  goes on with  edgellm pull\n                hf:org/m\n", "")
    monkeypatch.setenv("COLUMNS", "80")
    output.table(*table)
    assert capsys.readouterr() == (whole, "")


def test_a_sentence_is_folded_below_its_indentation(capsys: Streams, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "30")
    text = "  mend: free some space, or take another folder"
    edgellm.cli.output.Output().sentence(text)
    assert capsys.readouterr().out == text + "\n"
    at_terminal(monkeypatch, edgellm.cli.output)
    edgellm.cli.output.Output().sentence(text)
    assert capsys.readouterr().out == "  mend: free some space, or\n  take another folder\n"


def test_a_document_holds_what_is_text_of_a_name_that_is_none(capsys: Streams) -> None:
    edgellm.cli.output.Output(json=True).document({"file\udcff": ["/a\udcff.gguf", 1]})
    assert json.loads(capsys.readouterr().out) == {"file\ufffd": ["/a\ufffd.gguf", 1]}


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="a device that is always full")
@pytest.mark.parametrize("option", [["--json"], []])
def test_an_output_that_cannot_be_written_is_told_in_words(home: Path, option: list[str]) -> None:
    command = [sys.executable, "-m", "edgellm.cli.main"]
    with Path("/dev/full").open("wb") as full:
        done = subprocess.run([*command, "config", *option], stdout=full, stderr=subprocess.PIPE, text=True, timeout=60)
        assert done.returncode == DiskFull("").exit_code
        assert done.stderr.startswith("error: the disk is full\nhint: ")
        mute = subprocess.run([*command, "show", "no-model", *option], stdout=full, stderr=full, timeout=60)
        assert mute.returncode == NotFound("").exit_code
